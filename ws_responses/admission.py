"""Who a client is, and whether it may come in: what the operator's ``authorize`` and ``tenant`` say, and its credentials."""

import logging
import secrets
import warnings
from functools import partial

from msgspec import Struct

from ws_responses.asking import LateError, in_time
from ws_responses.errors import Refused, Unauthorized, Unavailable
from ws_responses.handshake import Handshake
from ws_responses.ids import Ids
from ws_responses.seats import Seat
from ws_responses.settings import Settings
from ws_responses.upstreams.base import Principal

logger = logging.getLogger("ws_responses.connection")
store_logger = logging.getLogger("ws_responses.store")

_LONELY = (
    "store= outlives this process, but without tenant_key= its clients are other tenants in every process: nobody will find what "
    "is stored. Give all processes the same tenant_key"
)

ANONYMOUS = "anonymous"
"""Tenant of all clients without credentials, with ``anonymous_tenant="shared"``."""


class Guest(Struct, frozen=True):
    """Who a client is that was let in.

    Attributes:
        tenant: Who owns its chains.
        anonymous: The tenant is this connection alone.
        principal: As ``authorize`` said.
    """

    tenant: str
    anonymous: bool
    principal: Principal | None


class Admission:
    """Judges clients at their first request and at each turn.

    Args:
        settings: The options.
        ids: Names the tenants that are one connection.
        tenant_key: Key of the hash that names tenants; None draws one for this process.
        shares_store: Chains are stored where other processes could find them.
    """

    def __init__(self, settings: Settings, ids: Ids, tenant_key: bytes | None, *, shares_store: bool) -> None:
        self._settings = settings
        self._ids = ids
        self._tenant_key = tenant_key or secrets.token_bytes(32)
        self._is_lonely = tenant_key is None and shares_store
        if self._is_lonely and settings.tenant is None and settings.authorize is None:
            warnings.warn(_LONELY, stacklevel=4)

    async def admit(self, handshake: Handshake, seat: Seat) -> Guest:
        """Judge a client at its first request, the cheap checks first.

        Raises:
            Refused: It is turned away.
        """
        seat.take()
        guest = await self.identify(handshake)
        await seat.take_for(guest.tenant, alone=guest.anonymous)
        return guest

    async def identify(self, handshake: Handshake) -> Guest:
        """Return who a request belongs to.

        Raises:
            Refused: Nobody who may come in.
        """
        principal = await self.authorize(handshake, None)
        tenant, anonymous = self.tenant_of(handshake, principal.tenant if principal else None)
        return Guest(tenant=tenant, anonymous=anonymous, principal=principal)

    def tenant_of(self, handshake: Handshake, principal_tenant: str | None) -> tuple[str, bool]:
        """Return who owns the chains of a connection, and whether that is the connection alone.

        Raises:
            Refused: The operator's ``tenant`` failed: nobody may come to own another's chains by that.
        """
        settings = self._settings
        named = principal_tenant
        if named is None and settings.tenant is not None:
            try:
                named = settings.tenant(handshake)
            except Refused:
                raise
            except Exception as error:
                logger.exception("tenant raised")
                raise Unavailable("Authorization failed.", headers={"retry-after": "1"}) from error
        if named is None:
            named = handshake.credentials_tenant(self._tenant_key)
            if named is not None and self._is_lonely:
                self._is_lonely = False
                store_logger.warning(_LONELY)
        if named is not None:
            return named, False
        if settings.anonymous_tenant == "shared":
            return ANONYMOUS, False
        return self._ids.new("anonymous"), True

    async def authorize(self, handshake: Handshake, model: str | None) -> Principal | None:
        """Return what the operator's ``authorize`` says; None if there is none.

        Raises:
            Refused: It refused, raised, or took too long (503).
        """
        settings = self._settings
        authorize = settings.authorize
        if authorize is None:
            return None
        try:
            principal = await in_time(
                partial(authorize, handshake, model), settings.clock, settings.limits.authorize_timeout_s
            )
        except Refused:
            raise
        except LateError:
            raise Unavailable("Authorization took too long.", headers={"retry-after": "1"}) from None
        except Exception as error:
            logger.exception("authorize raised")
            raise Unavailable("Authorization failed.", headers={"retry-after": "1"}) from error
        if principal is None:
            raise Unauthorized("The credential is missing or not valid here.")
        return principal

    async def authorize_turn(self, handshake: Handshake, model: str | None, tenant: str) -> Principal | None:
        """Ask the operator again, for a turn of a connection.

        Args:
            handshake: Of the connection.
            model: Of the turn.
            tenant: Who owns the chains of the connection.

        Raises:
            Refused: Not (or no longer) allowed.
        """
        principal = await self.authorize(handshake, model)
        if principal is not None and principal.tenant is not None and principal.tenant != tenant:
            raise Unauthorized("The credential of this connection now belongs to somebody else.")
        return principal
