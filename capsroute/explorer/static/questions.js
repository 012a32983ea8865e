// Questions to the server. While one is on its way, only the newest of those that follow is kept.

export async function ask(path, body) {
  const file = body instanceof Blob;
  const response = await fetch(`api/${path}`, {
    method: "POST",
    headers: { "Content-Type": file ? "application/octet-stream" : "application/json" },
    body: file ? body : JSON.stringify(body),
  });
  const answer = await response.json().catch(() => ({ error: `The server answered ${response.status}.` }));
  if (!response.ok) throw new Error(answer.error ?? `The server answered ${response.status}.`);
  return answer;
}

export class Asker {
  constructor(path, answered, failed) {
    Object.assign(this, { path, answered, failed, busy: false, next: null, round: 0 });
  }

  // Forget what was asked: answers that are still to come are nobody's any more.
  forget() {
    this.round += 1;
    this.next = null;
  }

  // Whether a newer question than the one that is being answered is still to be asked.
  get waiting() {
    return this.next !== null;
  }

  async ask(body) {
    if (this.busy) {
      this.next = { body };
      return;
    }
    this.busy = true;
    const { round } = this;
    try {
      const answer = await ask(this.path, body);
      if (round === this.round) this.answered(answer, body);
    } catch (error) {
      this.failed(error);
    }
    this.busy = false;
    if (this.next !== null) {
      const { body: newest } = this.next;
      this.next = null;
      this.ask(newest);
    }
  }
}
