"""The cluster's machines: join tokens; drain, remove and rename a machine; preview a plan."""

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from typing import Annotated

from pydantic import Field

from cluster.control.topology import PlanDraft
from cluster.controller import Controller
from cluster.errors import MachineUnknown, NameTaken, PeerRejected
from cluster.trust.addresses import Target
from cluster.trust.identity import NodeId
from gateway.admin.authority import Authority
from gateway.admin.fields import Body, Facts
from runtime.errors import Conflict, NotFound

# URLs drop `.` and `..`, commands read `-x` as an option, and invisible characters make two names look alike.
_UNSEEN = r"\x00-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
_NAME = rf"^[^\s/.\-{_UNSEEN}]([^/{_UNSEEN}]*[^\s/{_UNSEEN}])?$"
MachineName = Annotated[str, Field(min_length=1, max_length=64, pattern=_NAME)]


class NewName(Body):
    """A machine's display name, which commands and URLs contain."""

    name: MachineName


@contextmanager
def _of_known_machines() -> Generator[None]:
    try:
        yield
    except MachineUnknown as error:
        raise NotFound(str(error)) from None


async def create_token(
    authority: Authority, controller: Controller, cluster: Target, *, aside: bool = False
) -> Facts:
    """Create a join token for one machine; with `aside` the machine joins drained.

    Raises Conflict if too many join tokens are outstanding.
    """
    await authority.record("token.create", "cluster")
    try:
        token = controller.new_token(aside=aside)
    except PeerRejected as error:
        raise Conflict(str(error)) from None
    return {"token": token, "host": cluster.host, "port": cluster.port, "fingerprint": controller.fingerprint}


async def measure_links(authority: Authority, controller: Controller) -> int:
    """Measure every link between machines again; return the number of machines."""
    await authority.record("links.measure", "cluster")
    controller.measure_links()
    return len(controller.topology().members)


async def remove_machine(authority: Authority, controller: Controller, name: str) -> NodeId:
    """Remove a machine, given by name or id, at once; its work continues elsewhere. Raises NotFound."""
    with _of_known_machines():
        node_id = controller.machine(name)
        await authority.record("machine.remove", f"machine:{node_id}")
        return await controller.remove_machine(node_id)


async def drain_machine(authority: Authority, controller: Controller, name: str, *, undo: bool = False) -> NodeId:
    """Drain a machine, given by name or id; with `undo` enable it again. Raises NotFound."""
    with _of_known_machines():
        node_id = controller.machine(name)
        await authority.record("machine.undrain" if undo else "machine.drain", f"machine:{node_id}")
        return await controller.drain_machine(node_id, draining=not undo)


async def rename_machine(
    authority: Authority, controller: Controller, owners: Collection[str], name: str, new_name: str
) -> Facts:
    """Rename a machine wherever it is shown, until its own name is restored.

    Raises NotFound, and Conflict if the new name is taken or `owners`, of the settings, has either name.
    """
    with _of_known_machines():
        try:
            node_id = controller.machine(name)
            before = controller.name_of(node_id)
            controller.check_name(node_id, new_name)
            if named := {before, new_name} & set(owners):
                # The name may give the machine an owner's rights.
                text = f"name: the settings have {named.pop()} in cluster.owners: put the machine's id there first"
                raise Conflict(text, param="name")
            change = {"from": before, "to": new_name}
            await authority.record("machine.rename", f"machine:{node_id}", change)
            controller.rename_machine(node_id, new_name)
        except NameTaken as error:
            # If two callers request a name at once, the second is refused only when the name is stored.
            raise Conflict(f"name: {error}", param="name") from None
    return {"renamed": node_id} | change


async def draft_plan(controller: Controller, without: Sequence[str], including: Sequence[str]) -> PlanDraft:
    """Preview a new plan without some machines, and including drained ones. Nothing changes.

    Raises NotFound, and ModelNotFound if there is no model to plan for.
    """
    with _of_known_machines():
        return await controller.draft_plan(without, including=including)
