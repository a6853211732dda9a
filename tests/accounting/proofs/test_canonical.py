"""The bytes that hashes cover. Changing them would invalidate every signed block."""

import json

from hypothesis import given
from hypothesis import strategies as st

from accounting.proofs.canonical import USAGE_COLUMNS, event_line, header_line
from accounting.tables import usage_table

EVENT = (7, "cap:r\n1", "capture", bytes(range(32)), 'r"1\\', 1_790_000_000_000_000_001, '{"a":"b"}')
TRANSFERS = (
    (7, 11, 0, 1, 2, 600, "post", 9, None),
    (7, 12, 1, 2, 3, 10**15, "pending", None, 5),
)
CODES = {1: '"user:ann:paid"', 2: '"clearing:burst"', 3: '"provider:acme:accrued"'}


# Every column with a value of its own.
USAGE: dict[str, object] = {
    name: number if name.endswith(("_tokens", "_nano", "_ms", "_ns", "_seq")) else f"<{name}>"
    for number, name in enumerate(USAGE_COLUMNS)
} | {"price_id": None, "served_model": None, "ttft_ms": None}


def usage_row(**given: object) -> tuple[object, ...]:
    return tuple((USAGE | given)[name] for name in USAGE_COLUMNS)


def test_lines_are_these_bytes_for_ever() -> None:
    usages = (
        usage_row(event_seq=7, request_id="r2", model="é\x7f\x1f", cached_tokens=2**62),
        usage_row(event_seq=7, request_id="r1", ttft_ms=0, served_model="m", price_id="p"),
    )
    assert (
        event_line(EVENT, TRANSFERS, usages, CODES)
        == (
            '{"created_ns":"1790000000000000001","idem_key":"cap:r\\n1","kind":"capture","meta":"{\\"a\\":\\"b\\"}",'
            '"ref":"r\\"1\\\\","req_hash":"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f","seq":"7",'
            '"transfers":[{"amount":"600","credit":"clearing:burst","debit":"user:ann:paid","leg":"0","pending_seq":"9",'
            '"phase":"post","seq":"11"},{"amount":"1000000000000000","credit":"provider:acme:accrued",'
            '"debit":"clearing:burst","expires_ns":"5","leg":"1","phase":"pending","seq":"12"}],'
            '"usages":[{"cached_tokens":"1","charge_nano":"2","completion_tokens":"3","compute_nano":"4","cost_nano":"5",'
            '"count_source":"<count_source>","department":"<department>","duration_ms":"8","key_id":"<key_id>",'
            '"lane":"<lane>","model":"<model>","outcome":"<outcome>","price_id":"p","prompt_tokens":"14",'
            '"provider":"<provider>","reasoning_tokens":"16","request_id":"r1","served_model":"m","started_ns":"19",'
            '"tool_tokens":"20","ttft_ms":"0","user_id":"<user_id>"},'
            '{"cached_tokens":"4611686018427387904","charge_nano":"2","completion_tokens":"3","compute_nano":"4",'
            '"cost_nano":"5","count_source":"<count_source>","department":"<department>","duration_ms":"8",'
            '"key_id":"<key_id>","lane":"<lane>","model":"é\x7f\\u001f","outcome":"<outcome>","prompt_tokens":"14",'
            '"provider":"<provider>","reasoning_tokens":"16","request_id":"r2","started_ns":"19","tool_tokens":"20",'
            '"user_id":"<user_id>"}]}\n'
        ).encode()
    )
    assert header_line(2, 1001, 1002, 5, "ab") == (
        b'{"events":"2","from_seq":"1001","made_ns":"5","n":"2","signed_by":"ab","to_seq":"1002"}\n'
    )


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(key=TEXTS, ref=TEXTS, meta=TEXTS, model=TEXTS)
def test_every_text_is_sorted_json_without_spaces(key: str, ref: str, meta: str, model: str) -> None:
    event = (1, key, "use", b"\xff", ref, 2, meta)
    line = event_line(event, (), (usage_row(event_seq=1, model=model),), {})
    read = json.loads(line)
    used = {name: str(USAGE[name]) for name in USAGE_COLUMNS[1:] if USAGE[name] is not None}
    assert read == {
        "created_ns": "2",
        "idem_key": key,
        "kind": "use",
        "meta": meta,
        "ref": ref,
        "req_hash": "ff",
        "seq": "1",
        "transfers": [],
        "usages": [used | {"model": model}],
    }
    again = json.dumps(read, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert line == again.encode() + b"\n"


def test_no_column_of_usage_is_left_unproven() -> None:
    assert sorted(USAGE_COLUMNS) == sorted(usage_table.columns.keys())
    assert list(USAGE_COLUMNS[1:]) == sorted(USAGE_COLUMNS[1:])
