// Class capsules: how long each is, with routing and without, and what routing changed, in a sentence.

import { element, part } from "./dom.js";

const FOUND = 0.5; // from here on a capsule counts as there
const CLEAR = 0.25; // ahead of the next one by this much, an answer is clear

export class Classes {
  open(about) {
    this.about = about;
    const long = about.scores === "length";
    part("classes-title").textContent = long ? "Class capsules" : "Classes";
    part("classes-text").textContent = long
      ? "One capsule for each class. Its length, between 0 and 1, says how sure the network is that the class is there; its direction says how it looks."
      : "This network's capsules have no length to read: the bars are probabilities.";
    this.rows = about.classes.map((name) => {
      const bars = ["routed", "plain"].map((kind) => {
        const bar = element("div", { class: `bar ${kind}` });
        const track = element("div", { class: "track" }, bar);
        const value = element("span", { class: "value" });
        return { bar, track, value };
      });
      const row = element("div", { class: "class", role: "listitem" }, element("span", { class: "name" }, name),
                          ...bars.flatMap(({ track, value }) => [track, value]));
      return { row, bars };
    });
    part("bars").replaceChildren(...this.rows.map(({ row }) => row));
  }

  show(answer) {
    const kinds = [answer.scores, answer.plain];
    const found = new Set(answer.empty ? [] : answer.found);
    part("legend").hidden = answer.plain === null;
    this.rows.forEach(({ row, bars }, name) => {
      row.classList.toggle("found", found.has(name));
      kinds.forEach((lengths, kind) => {
        const { bar, track, value } = bars[kind];
        track.hidden = value.hidden = lengths === null;
        if (lengths === null) return;
        const length = answer.empty ? 0 : lengths[name];
        bar.style.width = `${100 * Math.min(length, 1)}%`;
        value.textContent = answer.empty ? "–" : length.toFixed(2);
      });
    });
    part("verdict").textContent = verdict(answer, this.about);
    part("changed").textContent = answer.empty ? "" : whatRoutingChanged(answer, this.about);
  }
}

function verdict({ empty, scores, found, ranked }, { classes, objects, usual }) {
  if (empty) return "Nothing drawn yet.";
  const [best, next] = ranked;
  const named = (name) => `${classes[name]} (${scores[name].toFixed(2)})`;
  if (objects > 1 && found.length > 1) return `The network sees ${found.map(named).join(" and ")}.`;
  const behind = objects > 1 ? CLEAR : scores[best] - scores[next];
  if (scores[best] < FOUND) return `Unsure: no class is there for certain. The nearest is ${named(best)}.`;
  if (usual !== null && scores[best] < usual - 0.01) {
    return `Unsure: the nearest is ${named(best)}; test images have ${usual.toFixed(2)} and more.`;
  }
  if (behind < CLEAR) return `Unsure: ${named(best)}, but ${named(next)} is close behind.`;
  return `The network sees ${named(best)}.`;
}

// Honest also where it is nothing.
export function whatRoutingChanged({ plain, scores, ranked }, { classes }) {
  if (plain === null) return "";
  const before = plain.indexOf(Math.max(...plain));
  const [best] = ranked;
  const start = `Without routing: ${classes[before]}, ${plain[before].toFixed(2)}.`;
  if (before !== best) return `${start} Routing changed the answer to ${classes[best]}, ${scores[best].toFixed(2)}.`;
  const rest = (lengths) => Math.max(...lengths.filter((_, name) => name !== best));
  const [gained, apart, was] = [scores[best] - plain[best], scores[best] - rest(scores), plain[best] - rest(plain)];
  if (Math.abs(gained) < 0.005 && Math.abs(apart - was) < 0.005) return `${start} Routing changed nothing.`;
  const moved = `${gained < 0 ? "−" : "+"}${Math.abs(gained).toFixed(2)}`;
  return `${start} Routing kept the answer (${moved}); its lead over the next class went from ${was.toFixed(2)} to ${apart.toFixed(2)}.`;
}
