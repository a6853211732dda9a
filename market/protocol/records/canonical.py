"""Write JSON in one canonical form (RFC 8785), so that anyone can reproduce the signed bytes.

Only exact values are allowed: strings, booleans, null, lists, objects, and integers that every JSON reader keeps
exact. Fractions are not. Amounts of money are decimal strings (`amounts`).
"""

from json.encoder import encode_basestring

from market.errors import RecordInvalid

INTEGER_MAX = 2**53 - 1
"""Beyond this JavaScript rounds, and RFC 8785 refuses."""
DEPTH_MAX = 12


def canonical(value: object) -> bytes:
    """Write a value in its only form, as UTF-8.

    Raises:
        RecordInvalid: it has a fraction, a large integer, half a character, deep nesting or a foreign type; the
            error names the place.
    """
    text = _write(value, "", DEPTH_MAX)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RecordInvalid("", "has half of a surrogate pair") from None


def _write(value: object, path: str, depth: int) -> str:
    if isinstance(value, str):
        return encode_basestring(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if type(value) is int:
        return _integer(value, path)
    if depth == 0:
        raise RecordInvalid(path, f"is nested more than {DEPTH_MAX} deep")
    if isinstance(value, list | tuple):
        return f"[{','.join(_write(each, f'{path}[{i}]', depth - 1) for i, each in enumerate(value))}]"
    if isinstance(value, dict):
        return _object(value, path, depth - 1)
    raise RecordInvalid(path, f"is a {type(value).__name__}, which signed records cannot contain")


def _integer(value: int, path: str) -> str:
    if abs(value) > INTEGER_MAX:
        raise RecordInvalid(path, "is an integer that JSON cannot keep exact: write it as a string")
    return str(value)


def _object(value: dict[object, object], path: str, depth: int) -> str:
    members = []
    for key in sorted(value, key=_code_units):
        inner = f"{path}.{key}" if path else str(key)
        members.append(f"{encode_basestring(str(key))}:{_write(value[key], inner, depth)}")
    return f"{{{','.join(members)}}}"


def _code_units(key: object) -> bytes:
    """Return the sort key of RFC 8785: UTF-16, which orders some characters differently from code points."""
    if not isinstance(key, str):
        raise RecordInvalid(str(key), "is not a string, as a name in JSON must be")
    return key.encode("utf-16-be", "surrogatepass")
