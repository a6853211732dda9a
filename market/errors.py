"""What can go wrong between gateways that trade, one class per meaning; none of them knows HTTP.

MarketError
├── RecordInvalid        a signed record that nobody should believe; it names the field
├── IdentityInvalid      a key or a statement about keys that an identity cannot have
├── ListingInvalid       an offer that contradicts itself; it names the field
├── JobInvalid           a job, or a part of its answer, that cannot be read; it names the field
├── StatementInvalid     a voucher, receipt or certificate that does not fit what it refers to
├── NotRegistered        a seller or an allocation that the house does not know
├── HouseRefuses         what the house does not do; `code` says why by name
├── RequestNotCounted    a request whose prompt has no count on the market; it names the part
├── TokenizerRefused     a stranger's tokenizer with parts that are not known to be harmless; it names the part
├── CountingUnavailable  nothing was counted, for a reason that is no tokenizer's: ask again later
└── SealBroken           a sealed message that was changed, cut short, reordered or sent twice
"""


class MarketError(Exception):
    """Root of everything this package raises on purpose."""


class RecordInvalid(MarketError):
    """A signed record that nobody should believe; `field` is a path like `body.pricing`, empty for all of it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field or 'the record'} {problem}")
        self.field = field
        self.problem = problem


class IdentityInvalid(MarketError):
    """A key or a statement about keys that an identity cannot have."""


class ListingInvalid(MarketError):
    """An offer that contradicts itself; `field` says where."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem


class JobInvalid(MarketError):
    """A job, or a part of its answer, that cannot be read; `field` is empty for all of it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field or 'the job'} {problem}")
        self.field = field
        self.problem = problem


class StatementInvalid(MarketError):
    """A voucher, receipt or certificate that does not fit what it refers to; `field` says which of several."""

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(problem)
        self.field = field


class NotRegistered(MarketError):
    """A seller or an allocation that the house does not know."""


class HouseRefuses(MarketError):
    """What the house does not do, for a reason that has a name."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


class RequestNotCounted(MarketError):
    """A request whose prompt has no count on the market; `field` is a path like `messages[0].content[1]`."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field


class TokenizerRefused(MarketError):
    """A stranger's tokenizer that is not counted with; `part` is a path like `normalizer.0`."""

    def __init__(self, part: str, problem: str) -> None:
        super().__init__(f"the tokenizer{'.' if part else ''}{part} {problem}")
        self.part = part
        self.problem = problem


class CountingUnavailable(MarketError):
    """Nothing was counted, for a reason that is no tokenizer's; asked again later it may be."""


class SealBroken(MarketError):
    """A sealed message that was changed, cut short, reordered or sent twice."""
