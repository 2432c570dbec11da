"""A conversation line by line."""

from collections.abc import Callable, Iterable, Iterator

from fcjax.text.chat import Conversation
from fcjax.text.generate import Generator, InOrder, room

RESET = "/reset"


def talk(
    generator: Generator,
    conversation: Conversation,
    lines: Iterable[str],
    most: int,
    write: Callable[[str], None],
    note: Callable[[str], None],
) -> None:
    """Answer every line until there are no more; `RESET` forgets what was said.

    Args:
      generator: for one row.
      conversation: new.
      lines: the user's.
      most: new tokens of an answer.
      write: gets the answers as they are made.
      note: gets a line or two about each, and why one is refused; the conversation goes on.
    """
    for line in lines:
        if line == RESET:
            conversation.reset()
            continue
        try:
            prompt = conversation.ask(line)
            new = room([prompt], generator.decoder.programs.length, None, most)
        except ValueError as e:
            note(f"error: {e}; {RESET} begins anew")
            continue
        result = generator.generate([prompt], new, InOrder(1, write))
        conversation.keep(line, result.rows[0].text)
        note(result.summary())


def read_lines(file, ask: Callable[[], None]) -> Iterator[str]:
    """The lines of a file that say something, without the white space around them.

    Args:
      file: a text file, such as stdin.
      ask: called before each line is read.
    """
    while True:
        ask()
        line = file.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()
