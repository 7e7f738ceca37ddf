"""A rich console that lets no control character of a name reach the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from nodeagent.errors import visible


class Visible(Console):
    """Shows control characters escaped, wherever a renderable got them from.

    A process may call itself anything, an escape sequence that clears the screen included.
    """

    def on_broken_pipe(self) -> None:
        """Told to `main`, which knows the exit code; rich itself would exit 1."""
        raise BrokenPipeError

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """See Console.render; only line ends stay what they are."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control is None and not text.isprintable():
                shown = "\n".join(visible(line) for line in text.split("\n"))
                segment = Segment(shown, style)
            yield segment
