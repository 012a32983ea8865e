"""Trains a queue of runs on one machine, as many at once as it is told, until all are done or the time is up.

    python tools/train_queue.py QUEUE.toml RUNS EVIDENCE --at-once 6 --seconds 560

A queue is a list of `[[run]]` tables: `recipe`, and as needed `name`, `seeds`, `set` (as `capsroute train --set`), and
`best_of`: the model settings of that one of the earlier runs with this prefix whose result is highest (as trained, on
the data it was judged by). Runs begin in the order of the queue. Started again, the queue goes on: finished runs are
left alone, others are resumed from their last checkpoint. When a run ends its small files go to EVIDENCE/NAME/, and
`evidence.tar.gz` is written anew, so that a machine that disappears costs minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass, field
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KEPT = ("result.json", "environment.json", "recipe.toml", "metrics.csv", "looks.csv")


@dataclass
class Job:
    """One run of the queue."""

    recipe: str
    name: str
    seed: int = 0
    settings: list[str] = field(default_factory=list)
    best_of: str | None = None
    process: subprocess.Popen | None = None
    tries: int = 0


def read_queue(path: Path) -> list[Job]:
    """The runs of a queue in order, one for each seed."""
    jobs = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["run"]:
        name = entry.get("name", entry["recipe"])
        for seed in entry.get("seeds", [0]):
            jobs.append(Job(entry["recipe"], f"{name}-seed-{seed}", seed, entry.get("set", []), entry.get("best_of")))
    if len({job.name for job in jobs}) < len(jobs):
        raise ValueError(f"{path}: two runs have one name; give them a `name` each")
    return jobs


def accuracy(folder: Path) -> float:
    """What a finished run reached as trained."""
    test = json.loads((folder / "result.json").read_text(encoding="utf-8"))["test"]
    return test.get("as_trained", test.get("dynamic"))["accuracy"]


class Queue:
    """Jobs that wait, run, and are done."""

    def __init__(self, jobs: list[Job], runs: Path, evidence: Path):
        self.jobs, self.runs, self.evidence = jobs, runs, evidence
        self.waiting = [job for job in jobs if not self._finished(job)]
        self.running: list[Job] = []
        self.failed: list[Job] = []
        runs.mkdir(parents=True, exist_ok=True)
        evidence.mkdir(parents=True, exist_ok=True)
        for job in jobs:
            if self._finished(job):
                self._keep(job)

    def _finished(self, job: Job) -> bool:
        return (self.runs / job.name / "result.json").is_file()

    def ready(self, job: Job) -> bool:
        """Whether the runs that a job chooses from are all done."""
        return job.best_of is None or not any(
            other.name.startswith(job.best_of) for other in [*self.waiting, *self.running]
        )

    def start(self, job: Job) -> None:
        folder = self.runs / job.name
        settings = list(job.settings)
        if job.best_of is not None:
            tried = [other for other in self.jobs if other.name.startswith(job.best_of) and self._finished(other)]
            best = max(tried, key=lambda other: accuracy(self.runs / other.name))
            settings += [s for s in best.settings if s.startswith("model.")]
            print(f"{job.name}: settings of {best.name} ({accuracy(self.runs / best.name):.4f})", flush=True)
        command = [sys.executable, "-m", "capsroute", "train"]
        if (folder / "recipe.toml").is_file():
            command += [str(folder), "--resume"]
        else:
            settings.append(f"training.seed={job.seed}")
            command += [job.recipe, "--out", str(folder), *(word for s in settings for word in ("--set", s))]
        with (self.runs / f"{job.name}.log").open("a", encoding="utf-8") as log:
            job.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        job.tries += 1
        print(f"started {job.name}", flush=True)

    def fill(self, at_once: int) -> None:
        for job in list(self.waiting):
            if len(self.running) >= at_once:
                return
            if self.ready(job):
                self.waiting.remove(job)
                self.start(job)
                self.running.append(job)

    def collect(self) -> None:
        for job in list(self.running):
            assert job.process is not None
            if job.process.poll() is None:
                continue
            self.running.remove(job)
            if self._finished(job):
                print(f"finished {job.name}: {accuracy(self.runs / job.name):.4f}", flush=True)
                self._keep(job)
            elif job.tries < 2:  # a run that died goes on once
                self.waiting.insert(0, job)
            else:
                self.failed.append(job)
                print(f"failed {job.name}: see {self.runs / job.name}.log", flush=True)

    def _keep(self, job: Job) -> None:
        target = self.evidence / job.name
        target.mkdir(exist_ok=True)
        for name in KEPT:
            if (self.runs / job.name / name).is_file():
                shutil.copyfile(self.runs / job.name / name, target / name)
        aside = self.evidence / ".evidence.tar.gz"
        with tarfile.open(aside, "w:gz") as archive:
            for folder in sorted(path for path in self.evidence.iterdir() if path.is_dir()):
                archive.add(folder, folder.name)
        os.replace(aside, self.evidence / "evidence.tar.gz")

    def stop(self, patience: float = 15.0) -> None:
        """Ask what runs to leave a checkpoint and end; then end it."""
        for job in self.running:
            job.process.terminate()  # type: ignore[union-attr]
        end = time.monotonic() + patience
        for job in self.running:
            try:
                job.process.wait(max(0.1, end - time.monotonic()))  # type: ignore[union-attr]
            except subprocess.TimeoutExpired:
                job.process.kill()  # type: ignore[union-attr]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("queue", type=Path)
    parser.add_argument("runs", type=Path, help="run folders; keep them to go on later")
    parser.add_argument("evidence", type=Path, help="where the small files of finished runs go")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop then; runs keep their checkpoints")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    queue = Queue(read_queue(given.queue), given.runs, given.evidence)
    try:
        while (queue.waiting or queue.running) and time.monotonic() < end:
            queue.fill(given.at_once)
            time.sleep(0.5)
            queue.collect()
    finally:
        queue.stop()
    left = [job.name for job in [*queue.failed, *queue.running, *queue.waiting]]
    print(f"left: {', '.join(left)}" if left else "all done", flush=True)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
