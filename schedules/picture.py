# pyright: reportUnknownMemberType=false
# matplotlib's own types leave the keyword arguments of its drawing methods open.
"""Pictures as files: their forms, their bytes, and the figure that they are drawn on."""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from bubbleproof.schedules.files import AnyPath, printable, write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMS = (".svg", ".png", ".pdf")


def form_of(path: AnyPath) -> str:
    """Return the form of a picture's file, its extension.

    Raises
    ------
    ValueError
        If pictures are not written so.
    """
    form = Path(path).suffix.lower()
    if form not in FORMS:
        raise ValueError(
            f"{printable(path)}: a picture is written as {', '.join(FORMS)}, not {form!a}"
        )
    return form


def new_figure(width_inches: float, height_inches: float) -> "Figure":
    """Return an empty figure of its own, without pyplot's global state.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "pictures need matplotlib: pip install 'matplotlib>=3.8' (the extra plot)",
            name="matplotlib",
        ) from error
    return Figure(figsize=(width_inches, height_inches), facecolor="white")


def write_picture(figure: "Figure", path: AnyPath, dots_per_inch: int) -> None:
    """Write a figure; the same figure gives the same bytes.

    Raises
    ------
    ValueError
        If the extension is no picture's or the file cannot be written.
    """
    write_file(path, _bytes(figure, form_of(path), dots_per_inch))


def _bytes(figure: "Figure", form: str, dots_per_inch: int) -> bytes:
    import matplotlib

    # Neither a date nor random ids: the same schedule is the same file.
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}[form]
    buffer = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "bubbleproof"}):
        figure.savefig(buffer, format=form[1:], dpi=dots_per_inch, metadata=metadata)
    return buffer.getvalue()
