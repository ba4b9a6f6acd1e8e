"""JSON and TOML with exact numbers: decimal text stays decimal, and nothing is read two ways.

Stricter than Python's parsers where those accept what JSON does not have (NaN, Infinity) or what
has two readings (a key given twice).
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from decimal import Decimal, DecimalException

import msgspec

from bubbleproof.schedules.files import Source
from bubbleproof.schedules.quantity import shown
from bubbleproof.schedules.words import is_list, is_object

_DIGITS_AT_MOST = 100
_LINES_OF_A_VALUE = 100
_WIDTH = 100
_ENCODER = msgspec.json.Encoder(decimal_format="number")

_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|-?(?:NaN|Infinity)|-?[0-9][0-9.eE+-]*|[{}\[\]:,]', re.DOTALL
)
_TOML_PLACE = re.compile(
    r"(.*) \(at (?:line ([0-9]+), column ([0-9]+)|end of document)\)", re.DOTALL
)
_TOML_TWICE = re.compile(r"Cannot declare .* twice", re.DOTALL)
_TOML_KEY = re.compile(
    r"""[ \t]*\[{0,2}[ \t]*((?:"(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+|[ \t]*\.[ \t]*)+)"""
)
_ESCAPES = {
    "\b": r"\b",
    "\t": r"\t",
    "\n": r"\n",
    "\f": r"\f",
    "\r": r"\r",
    '"': r"\"",
    "\\": r"\\",
}
_OTHER_QUOTES = "'`\u2018\u2019\u201c\u201d"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class _BadNumberError(ValueError):
    """A number's text that is refused before it is read."""


def parse_json(source: Source) -> object:
    """Read strict JSON; numbers are int or Decimal.

    Raises
    ------
    ValueError
        With line and column: if the text is cut or no JSON, has NaN, Infinity, a key twice, or a
        number of more than 100 characters.
    """
    try:
        return json.loads(
            source.text,
            parse_float=_decimal,
            parse_int=_whole,
            parse_constant=_decimal,
            object_pairs_hook=_object,
        )
    except json.JSONDecodeError as error:
        raise source.at(error.pos, _json_fault(source.text, error)) from None
    except _BadNumberError:
        raise _first_fault(source) from None
    except RecursionError:
        raise source.of("the text is nested too deeply; no problem or schedule is") from None


def parse_toml(source: Source) -> dict[str, object]:
    """Read TOML; numbers are int or Decimal.

    Raises
    ------
    ValueError
        With line and column where the fault has one.
    """
    try:
        return tomllib.loads(source.text, parse_float=_decimal)
    except tomllib.TOMLDecodeError as error:
        raise _toml_fault(source, str(error)) from None
    except RecursionError:
        raise source.of("the text is nested too deeply; no problem is") from None
    except ValueError:
        # The parser gives no place for a number that int() or _decimal() refuses.
        long = re.search(
            rf"[-+0-9._eE]{{{_DIGITS_AT_MOST + 1},}}|[-+0-9._]+[eE][-+0-9_]+", source.text
        )
        raise source.at(long.start() if long else 0, _too_long()) from None


def json_text(words: Mapping[str, object]) -> str:
    """Write an object as JSON: whole on a line where it fits, else an item per line."""
    return _json_layout(words, "") + "\n"


def toml_text(words: Mapping[str, object]) -> str:
    """Write an object as TOML, an inner object as a table.

    Raises
    ------
    ValueError
        If a value is None, for which TOML has no text.
    """
    lines = [
        f"{_toml_key(key)} = {_toml_value(value, key)}"
        for key, value in words.items()
        if not is_object(value)
    ]
    for key, table in words.items():
        if is_object(table):
            lines += ["", f"[{_toml_key(key)}]"]
            lines += [f"{_toml_key(k)} = {_toml_value(v, f'{key}.{k}')}" for k, v in table.items()]
    return "\n".join(lines) + "\n"


def _decimal(text: str) -> Decimal:
    if len(text) > _DIGITS_AT_MOST or text in ("NaN", "Infinity", "-Infinity"):
        raise _BadNumberError
    try:
        return Decimal(text)
    except DecimalException:
        raise _BadNumberError from None


def _whole(text: str) -> int:
    if len(text) > _DIGITS_AT_MOST:
        raise _BadNumberError
    return int(text)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    read = dict(pairs)
    if len(read) < len(pairs):
        raise _BadNumberError
    return read


def _json_fault(text: str, error: json.JSONDecodeError) -> str:
    rest = text[error.pos :].strip()
    if not rest or error.msg.startswith("Unterminated string"):
        return f"the text ends within a value; the file is cut off ({error.msg})"
    if rest[0] in _OTHER_QUOTES:
        return 'a text is written in straight double quotes, as "linear"'
    if rest[0] in "}]" and error.msg.startswith(
        ("Expecting value", "Expecting property", "Illegal")
    ):
        return "JSON has no comma after the last item; remove it"
    return f"no valid JSON: {error.msg}, found {rest[:20]!a}"


def _first_fault(source: Source) -> ValueError:
    """Find what the parser's hooks refused; they are not told where they are."""
    keys: list[set[str]] = []
    text_before: tuple[int, str] | None = None
    for token in _TOKEN.finditer(source.text):
        text, position = token[0], token.start()
        if text[0] == '"':
            text_before = position, text
            continue
        if text == ":" and keys and text_before is not None:
            key: object = json.loads(text_before[1])
            if key in keys[-1]:
                return source.at(text_before[0], f"{shown(key)} is given twice; once is right")
            keys[-1].add(str(key))
        elif text in "{[":
            keys.append(set())
        elif text in "}]" and keys:
            keys.pop()
        elif text[-1] in "Ny":
            return source.at(position, f"{text} is no number in JSON; write one, as 12 or 0.5")
        elif text[-1] not in ":,":
            try:
                _decimal(text)
            except _BadNumberError:
                return source.at(position, _too_long())
        text_before = None
    return source.of("a key is given twice, or a number is too long")


def _toml_fault(source: Source, message: str) -> ValueError:
    place = _TOML_PLACE.fullmatch(message)
    if place is None:
        return source.of(f"no valid TOML: {message}")
    if place[1] == "Cannot overwrite a value" or _TOML_TWICE.fullmatch(place[1]):
        return _toml_key_twice(source, int(place[2]) if place[2] else None)
    what = "no valid TOML: " + " ".join(place[1].split())
    if place[2] is None:
        return source.at(len(source.text), f"{what}; the file may be cut off")
    return ValueError(f"{source.name}:{place[2]}:{place[3]}: {what}")


def _toml_key_twice(source: Source, line: int | None) -> ValueError:
    """Find the key of a value that a parser has just passed; it does not say which it is."""
    lines = source.text.split("\n")
    end = len(lines) if line is None else line
    for first in range(end - 1, max(-1, end - 1 - _LINES_OF_A_VALUE), -1):
        try:
            tomllib.loads("".join(f"{each}\n" for each in lines[:first]), parse_float=_decimal)
        except ValueError:
            continue
        key = _TOML_KEY.match(lines[first])
        if key is not None:
            name = f"{source.name}:{first + 1}:{key.start(1) + 1}"
            return ValueError(f"{name}: {shown(key[1])} is given twice; once is right")
    return ValueError(f"{source.name}:{end}:1: a key is given twice; once is right")


def _too_long() -> str:
    return f"a number of more than {_DIGITS_AT_MOST} characters or too large an exponent"


def _json_layout(value: object, indent: str) -> str:
    flat = msgspec.json.format(_ENCODER.encode(value), indent=0).decode()
    if len(indent) + len(flat) <= _WIDTH:
        return flat
    inner = indent + "  "
    if is_object(value):
        lines = [f"{json.dumps(key)}: {_json_layout(item, inner)}" for key, item in value.items()]
        return _block("{", lines, "}", indent)
    if is_list(value) and any(is_object(item) or is_list(item) for item in value):
        return _block("[", [_json_layout(item, inner) for item in value], "]", indent)
    return flat


def _block(opening: str, lines: Sequence[str], closing: str, indent: str) -> str:
    joined = ",\n".join(f"{indent}  {line}" for line in lines)
    return f"{opening}\n{joined}\n{indent}{closing}"


def _toml_value(value: object, where: str) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case Decimal():
            return format(value, "f")
        case str():
            return _toml_string(value)
        case _ if is_object(value):
            pairs = (f"{_toml_key(k)} = {_toml_value(v, where)}" for k, v in value.items())
            return f"{{ {', '.join(pairs)} }}"
        case _ if is_list(value):
            return f"[{', '.join(_toml_value(item, where) for item in value)}]"
        case _:  # None: a file's words have no other kind of value.
            raise ValueError(f"{where}: TOML has no null; save it as .json")


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _toml_string(key)


def _toml_string(text: str) -> str:
    return f'"{"".join(map(_toml_character, text))}"'


def _toml_character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    return character if character >= " " and character != "\x7f" else f"\\u{ord(character):04X}"
