"""What a model costs, and what a turn has cost by that: exact, and unknown where a number of it is unknown."""

from decimal import Decimal
from typing import Final, Protocol

from msgspec import Struct

from ws_responses.errors import ConfigurationError

_MILLION: Final = 1_000_000


class Counted(Protocol):
    """Tokens that were used, as :class:`~ws_responses.settlement.TurnUsage` has them; None is unknown."""

    @property
    def input_tokens(self) -> int | None:
        """Of the input, cached ones included."""
        ...

    @property
    def cached_tokens(self) -> int | None:
        """Of these, those that came from a cache."""
        ...

    @property
    def output_tokens(self) -> int | None:
        """Sampled, reasoning included."""
        ...


class Price(Struct, frozen=True, kw_only=True):
    """What a model costs, for a million tokens of each kind.

        Price(input=Decimal("1.25"), cached_input=Decimal("0.125"), output=Decimal(10))

    Money is no float: amounts are ``Decimal``, and JSON has them as strings.

    Attributes:
        input: Of input that came from no cache.
        output: Of what was sampled, reasoning included.
        cached_input: Of input that came from a cache; None if that costs the same as other input.
        currency: Names the unit of these amounts.

    Raises:
        ConfigurationError: An amount is no ``Decimal``, not finite or below 0, or the currency has no name.
    """

    input: Decimal
    output: Decimal
    cached_input: Decimal | None = None
    currency: str = "USD"

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached_input"):
            amount: object = getattr(self, name)
            if amount is None and name == "cached_input":
                continue
            if not isinstance(amount, Decimal):
                raise ConfigurationError(f"{name} must be a Decimal, such as Decimal('0.25'), not {amount!r}")
            if not amount.is_finite() or amount < 0:
                raise ConfigurationError(f"{name} must be a finite amount of at least 0, not {amount}")
        if not self.currency:
            raise ConfigurationError("the currency of a price must have a name")

    def cost_of(self, used: Counted) -> Decimal | None:
        """Return the cost of a turn in the price's currency; None where it cannot be told, never 0 for unknown.

        It is not rounded. How much came from a cache must be known only if that has a price of its own.

        Args:
            used: The tokens.
        """
        given, sampled = used.input_tokens, used.output_tokens
        if given is None or sampled is None:
            return None
        cached_input = self.input if self.cached_input is None else self.cached_input
        cached = used.cached_tokens
        if cached is None:
            if cached_input != self.input:
                return None
            cached = 0
        if cached > given:
            return None  # a service that counts cached tokens beside the others: which, it does not say
        amount = (given - cached) * self.input + cached * cached_input + sampled * self.output
        return amount / _MILLION
