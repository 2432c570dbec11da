"""A run of cold starts, each a process of its own, that can be cut off at any moment.

    python -m fcjax.cold_starts RUN INDEX

is one of them: it reads RUN/run.json and is told nothing else. What is there is never written
again: a start that failed or was cut off stays as `start_<i>_failed_<n>`, and the next attempt
begins from nothing in a new folder.
"""

import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from fcjax import audit, cli, files, report
from fcjax.mesh import use_platform
from fcjax.record import reader, run_folder, summary
from fcjax.record.job import Job
from fcjax.record.start import Start

_TAIL = 4000  # characters of a failed process's output that are kept


class StartFailed(Exception):
    """A cold start came to no end.

    Attributes:
      exit_code: of its process; negative: the signal.
    """

    def __init__(self, reason: str, exit_code: int):
        super().__init__(reason)
        self.exit_code = exit_code


def create(folder, job: Job) -> pathlib.Path:
    """A new run folder with run.json.

    Raises:
      ValueError: the folder exists; what is in it stays as it is.
    """
    folder = files.new_folder(folder)
    files.write_json(folder / run_folder.RUN, job.to_json())
    return folder


def read(folder) -> Job:
    """The job of a run folder.

    Raises:
      ValueError: it is none.
    """
    return Job.from_json(reader.run_json(folder))


def tidy(folder: pathlib.Path, job: Job) -> list[str]:
    """Put aside what earlier attempts left unfinished; returns the names of those folders."""
    moved = []
    for i in reader.missing(folder, job.cold_starts):
        if reader.start_folder(folder, i).exists():
            reason = "cut off: it left no summary, and nothing is known of why"
            moved.append(keep_failure(folder, i, reason).name)
    for left in sorted(folder.rglob(".*.tmp"), reverse=True):  # of a write that was cut off
        if left.is_dir():
            for file in left.iterdir():
                file.unlink()
            left.rmdir()
        else:
            left.unlink()
    return moved


def keep_failure(
    folder: pathlib.Path, index: int, reason: str, exit_code: int | None = None, output: str = ""
) -> pathlib.Path:
    """Move a start that failed aside, with what is known of why; returns where it is now."""
    start = reader.start_folder(folder, index)
    start.mkdir(exist_ok=True)
    attempt = reader.next_attempt(folder, index)
    path = start / run_folder.FAILURE
    if not path.exists():
        recorded, torn = reader.decode_steps(start, reader.run_sha256(folder))
        files.write_json(path, {
            "start": index,
            "attempt": attempt,
            "reason": reason,
            "exit_code": exit_code,
            "steps_recorded": recorded,
            "torn_line": torn,
            "noted": time.time(),
            "output": output[-_TAIL:],
        })
    kept = reader.failed_folder(folder, index, attempt)
    start.rename(kept)
    files.sync_folder(folder)
    return kept


@contextlib.contextmanager
def kept(folder: pathlib.Path, index: int):
    """Keep a start of this process as failed, if the block ends with an exception."""
    try:
        yield
    except BaseException as e:
        if reader.start_folder(folder, index).exists():
            keep_failure(folder, index, _reason(e), output=str(e))
        raise


def _reason(e: BaseException) -> str:
    if isinstance(e, KeyboardInterrupt):
        return "interrupted"
    if isinstance(e, audit.Failed):
        return "the audit failed"
    return f"{type(e).__name__}: {(str(e).splitlines() or [''])[0]}"


@contextlib.contextmanager
def recorded_here(folder, job: Job):
    """A run of one cold start in this process, from a new folder to its manifest.

    Yields the `Start`, of which the block calls the stages. If the block raises, the start is kept
    as failed. After it the run is complete: its figures are `reader.summary(folder)`, the start's
    `Start.summary`.

    Raises:
      ValueError: the folder exists, or the job has more than one start.
    """
    if job.cold_starts != 1:
        raise ValueError(f"cold starts: expected 1 in this process, got {job.cold_starts}")
    folder = create(folder, job)
    with run_folder.lock(folder):
        with kept(folder, 0):
            yield Start(folder, job, 0)
        finish(folder, job)


def finish(folder: pathlib.Path, job: Job) -> dict:
    """Summary, report and manifest, in this order: the run is complete. Returns the summary."""
    result = summary.of_run(folder, job)
    files.write_json(folder / run_folder.SUMMARY, result)
    report.write(folder)
    run_folder.seal(folder)
    return result


# What a start says while it runs: ("phase", words) or ("step", its index).
Listener = Callable[[str, object], None]


def start_process(folder: pathlib.Path, index: int, lock: int, listener: Listener) -> None:
    """One cold start in a new process.

    Args:
      folder: of the run.
      index: of the start.
      lock: descriptor that holds the run folder; the process holds it too.
      listener: told of its progress.

    Raises:
      StartFailed: it came to no end; its folder has been put aside.
    """
    command, environment = cli.python("-m", "fcjax.cold_starts", str(folder), str(index))
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            pass_fds=(lock,),
            env=environment,
        )
        lines = []
        try:
            for line in process.stdout:
                event = _event(line)
                if event is None:
                    lines.append(line)
                else:
                    listener(*event)
            code = process.wait()
        except BaseException as e:
            process.terminate()
            process.wait()
            keep_failure(folder, index, _reason(e), process.returncode)
            raise
        if code == 0:
            return
        errors.seek(0)
        output = "".join(lines) + errors.read()
    reason = _ended(code, output)
    try:
        reason += f" ({keep_failure(folder, index, reason, code, output)})"
    except OSError as e:  # a full disk; the next attempt puts it aside
        reason += f"; it stays where it is: {e.strerror} ({reader.start_folder(folder, index)})"
    raise StartFailed(reason, code)


def _ended(code: int, output: str) -> str:
    """Why a process ended, in one line."""
    if code < 0:
        return f"its process was ended by signal {-code}"
    lines = [x for x in output.splitlines() if x.strip()] or ["it said nothing"]
    refused = [x for x in lines if x.startswith("error: ")]
    return refused[-1].removeprefix("error: ") if refused else f"exit code {code}: {lines[-1]}"


def _event(line: str) -> tuple[str, object] | None:
    try:
        kind, value = json.loads(line)
    except (ValueError, TypeError):
        return None  # something that a library printed
    return kind, value


def main(argv) -> int:
    """One cold start, in this process."""
    if len(argv) != 3 or not argv[2].isdigit():
        raise ValueError(f"arguments: expected RUN INDEX, got {argv[1:]}")

    def say(kind, value):
        print(json.dumps([kind, value]), flush=True)

    def progress(steps):
        for step in steps:
            yield step
            say("step", step.index)

    folder, index = pathlib.Path(argv[1]), int(argv[2])
    job = read(folder)
    use_platform(job.platform, job.nodes)
    start = Start(folder, job, index)
    say("phase", "compiling and auditing")
    try:
        start.prepare()
    except audit.Failed as e:
        print(e, file=sys.stderr)
        return 1
    say("phase", "loading")
    start.load()
    say("phase", "decoding")
    start.decode(progress)
    return 0


if __name__ == "__main__":
    cli.run(main, ("RUN", "INDEX"))
