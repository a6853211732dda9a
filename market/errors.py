"""Errors between gateways that trade, one class per meaning. None of them knows HTTP.

MarketError
├── RecordInvalid        a signed record must not be believed; the error names the field
├── IdentityInvalid      an identity cannot have this key or statement about keys
├── ListingInvalid       an offer contradicts itself; the error names the field
├── JobInvalid           a job, or a part of its answer, cannot be read; the error names the field
├── StatementInvalid     a voucher, receipt or certificate does not fit what it refers to
├── NotRegistered        the marketplace does not know this seller or allocation
├── MarketplaceRefuses         the marketplace refuses a request; `code` names the reason
├── RequestNotCounted    the market has no count for a part of the prompt; the error names the part
└── SealBroken           a sealed message was changed, cut short, reordered or sent twice
"""


class MarketError(Exception):
    """Base class of every error that this package raises on purpose."""


class RecordInvalid(MarketError):
    """Raised for a signed record that must not be believed.

    `field` is a path like `body.pricing`, or "" for all of it.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field or 'the record'} {problem}")
        self.field = field
        self.problem = problem


class IdentityInvalid(MarketError):
    """Raised for a key, or a statement about keys, that an identity cannot have."""


class ListingInvalid(MarketError):
    """Raised for an offer that contradicts itself. `field` is the place."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem


class JobInvalid(MarketError):
    """Raised for a job, or a part of its answer, that cannot be read. `field` is "" for all of it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field or 'the job'} {problem}")
        self.field = field
        self.problem = problem


class StatementInvalid(MarketError):
    """Raised for a voucher, receipt or certificate that does not fit its subject. `field` names one of several."""

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(problem)
        self.field = field


class NotRegistered(MarketError):
    """Raised for a seller or an allocation that the marketplace does not know."""


class MarketplaceRefuses(MarketError):
    """Raised when the marketplace refuses a request. `code` names the reason."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


class RequestNotCounted(MarketError):
    """Raised if the market has no count for a part of a prompt.

    `field` is a path like `messages[0].content[1]`.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field


class SealBroken(MarketError):
    """Raised for a sealed message that was changed, cut short, reordered or sent twice."""
