"""JSON with one way to write it (RFC 8785), so that a signature is over bytes that anybody can make again.

Only what needs no rounding is let in: strings, booleans, null, lists, objects, and integers that every reader of
JSON keeps exact. No fractions at all. Amounts of money travel as decimal strings (`amounts`).
"""

from json.encoder import encode_basestring

from market.errors import RecordInvalid

INTEGER_MAX = 2**53 - 1
"""Beyond it JavaScript rounds, and RFC 8785 refuses."""
DEPTH_MAX = 12


def canonical(value: object) -> bytes:
    """Write a value in its only form, as UTF-8.

    Raises:
        RecordInvalid: for fractions, large integers, half characters, deep nesting and foreign types; it names
            where.
    """
    text = _write(value, "", DEPTH_MAX)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RecordInvalid("", "has half of a surrogate pair, which is no character") from None


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
    raise RecordInvalid(path, f"is a {type(value).__name__}, which signed records have not")


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
    """What RFC 8785 sorts names by: UTF-16, which puts some characters elsewhere than their code points would."""
    if not isinstance(key, str):
        raise RecordInvalid(str(key), "is no string, as names in JSON are")
    return key.encode("utf-16-be", "surrogatepass")
