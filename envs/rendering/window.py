"""Windows for human players."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from .canvas import Picture

QUIT = "Escape"


class Window(Protocol):
    """Shows pictures and reports the keys held down, by their names in Tk."""

    @property
    def held(self) -> Collection[str]:
        """Returns the keys that are held down."""

    @property
    def is_open(self) -> bool:
        """Returns whether the window is open."""

    def show(self, picture: Picture) -> None:
        """Shows a picture, and processes the user's input."""


class TkWindow:
    """A window of Tk; the escape key closes it.

    Args:
        size: size of the pictures in pixels.
        title: title of the window.

    Raises:
        ValueError: Tk or a display is missing.
    """

    def __init__(self, size: tuple[int, int], title: str) -> None:
        try:
            import tkinter
        except ImportError:
            raise ValueError(
                "playing needs tkinter, which this Python lacks (Debian: apt install python3-tk)"
            ) from None
        try:
            self._root = tkinter.Tk()
        except tkinter.TclError as error:
            raise ValueError(f"playing needs a display: {error}") from None
        self.held: dict[str, bool] = {}
        self.is_open = True
        self._root.title(title)
        self._root.resizable(False, False)
        self._image = tkinter.PhotoImage(master=self._root, width=size[0], height=size[1])
        tkinter.Label(self._root, image=self._image, borderwidth=0).pack()

        def close() -> None:
            self.is_open = False

        def press(event: Any) -> None:
            self.held[_named(event.keysym)] = True
            if event.keysym == QUIT:
                close()

        self._root.bind("<KeyPress>", press)
        self._root.bind("<KeyRelease>", lambda event: self.held.pop(_named(event.keysym), None))
        self._root.bind("<FocusOut>", lambda _: self.held.clear())
        self._root.protocol("WM_DELETE_WINDOW", close)

    def show(self, picture: Picture) -> None:
        """Shows a picture, and processes the user's input."""
        height, width = picture.shape[:2]
        self._image.configure(data=b"P6 %d %d 255\n" % (width, height) + picture.tobytes(), format="ppm")
        self._root.update()
        if not self.is_open:
            self._root.destroy()


def _named(key: str) -> str:
    return key.lower() if len(key) == 1 else key  # letters are the same under caps lock
