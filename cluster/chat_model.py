"""One model that answers prompts: its files, its deployment, and the requests of its callers."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import structlog

from cluster import wire
from cluster.client import ModelClient
from cluster.control.deployment import Deployment, Model
from cluster.control.manager import DeploymentManager
from cluster.control.model_text import ModelText
from cluster.control.next_plan import PlanOptions
from cluster.control.readiness import Readiness, Status
from cluster.control.request_gate import AdmittedRequest
from cluster.control.specs import DeploymentSpec
from cluster.control.subscription import Subscription
from cluster.control.supervisor import Supervisor, deployment_state
from cluster.control.topology import DeploymentState
from cluster.errors import ClusterUnavailable, ModelNotFound, ProcessLost
from cluster.generation import ChatPrompt, GenerateRequest, GenerationEvent
from cluster.models.chat_format import ChatFormat
from cluster.models.checkpoint import check_tensors
from cluster.models.manifest import Progress
from cluster.models.model_card import read_card
from cluster.models.store import find_model, load_manifest, model_name
from cluster.plans.forecast import Prediction
from cluster.resumption import ResumedRequest
from cluster.trust.identity import Identity

log = structlog.get_logger(__name__)

READY_PATIENCE_S = 60.0
# A request that has begun waits this long for another pipeline, as in the coordinator
# (request_table.PIPELINE_PATIENCE_S).
RESUME_PATIENCE_S = 120.0
# The pause after a request has lost its pipeline, until the manager has noticed the loss, too.
LOSS_PAUSE_S = 0.05
LOSS_PAUSE_MAX_S = 1.0

Step = Literal["pulled", "hashed"]


@dataclass(frozen=True, slots=True)
class Reading:
    """The progress of reading a model's files, out of the total that is known so far."""

    step: Step
    done_bytes: int
    total_bytes: int


class ChatModel:
    """A model and its pipeline. Use: `load_model`, then `generate`. `manager` repeats its deployment."""

    def __init__(
        self,
        folder: Path,
        identity: Identity,
        subscription: Subscription,
        options: PlanOptions,
        peers: Sequence[Supervisor[Any]],
        spec: DeploymentSpec,
    ) -> None:
        """Callers ask for the model by the name in `spec`; without one by its folder's name or Hugging Face id."""
        self._folder = folder
        self._identity = identity
        self._context_requested = options.context_tokens
        self.manager = DeploymentManager(folder, subscription, options, self._use_coordinator, peers, spec)
        self._text: ModelText | None = None
        self._reading: Reading | None = None
        self._client: ModelClient | None = None
        self._opening = asyncio.Lock()

    async def stop(self) -> None:
        """Close the connection to the coordinator."""
        await self._hang_up()

    async def load_model(self, reference: str, progress: Progress | None = None) -> Model:
        """Find, hash and check a model, which is deployed as soon as there are machines. Raise ModelError."""
        try:
            return await self.manager.load(model_name(reference), lambda: self._read_model(reference, progress))
        finally:
            self._reading = None

    def _watched(self, step: Step, progress: Progress | None = None) -> Progress:
        def tell(done_bytes: int, total_bytes: int) -> None:
            # The reading thread calls this. It only makes one assignment, so it needs no lock.
            self._reading = Reading(step, done_bytes, total_bytes)
            if progress:
                progress(done_bytes, total_bytes)

        return tell

    def _read_model(self, reference: str, progress: Progress | None) -> Model:
        """Pull, hash and check a model, on a thread. Raise ModelError."""
        name = model_name(reference)
        folder = find_model(reference, self._folder / "models", progress=self._watched("pulled"))
        hashed = self._watched("hashed", progress)
        manifest = load_manifest(folder, name, self._folder / "manifests", hashed)
        card = read_card(manifest.config)
        check_tensors(card, manifest)
        self._text = ModelText.open(folder)
        return Model(name, folder, manifest, card)

    @property
    def model(self) -> Model | None:
        """The model once its files have been read."""
        return self.manager.model

    @property
    def model_name(self) -> str | None:
        """The model's name for callers, known before its files are; None without a model."""
        return self.manager.model_name

    @property
    def model_source(self) -> str | None:
        """Its folder's or file's name, or its Hugging Face id."""
        return self.manager.model_source

    @property
    def reading(self) -> Reading | None:
        """The progress of a model that is being pulled or hashed."""
        return self._reading

    @property
    def context_tokens(self) -> int | None:
        """The longest context (prompt plus answer) in tokens: of the pipeline, or of the model without one."""
        if deployment := self.manager.deployment:
            return deployment.plan.context_tokens
        if self.model is None:
            return None
        longest = self.model.card.context_tokens
        return min(longest, self._context_requested or longest)

    @property
    def chat_format(self) -> ChatFormat:
        """How the model writes thoughts and tool calls."""
        return self._text.format if self._text else ChatFormat()

    @property
    def unconstrained(self) -> str:
        """Why answers cannot be constrained to a schema, in words.

        Empty if they can, or if that is not known yet.
        """
        return self.manager.deployment.unconstrained if self.manager.deployment else ""

    @property
    def predicted(self) -> Prediction | None:
        """The expected speed of the current pipeline."""
        return self.manager.deployment.plan.predicted if self.manager.deployment else None

    async def count_tokens(self, messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()) -> int:
        """Return the tokens of a chat's prompt, by the model's own template and tokenizer.

        Raise RequestInvalid, ContextLengthExceeded or ModelInvalid, and ModelNotFound before there is a model.
        """
        if self._text is None:
            raise ModelNotFound("no model is loaded that could count tokens")
        return await self._text.count(ChatPrompt(messages, list(tools)))

    @property
    def readiness(self) -> Readiness:
        return self.manager.readiness

    @property
    def status(self) -> tuple[Status, str]:
        return self.readiness.status

    @property
    def deployment(self) -> Deployment | None:
        """The pipeline that works now."""
        return self.manager.deployment

    @property
    def is_ready(self) -> bool:
        return self.status[0] == "ready"

    def state(self) -> DeploymentState | None:
        """Return the state for display; None without a model."""
        if not (name := self.model_name):
            return None
        plan = self.deployment.plan if self.deployment else None
        return replace(
            deployment_state(self.manager, name, "chat"),
            precision=plan.precision if plan else None,
            context_tokens=plan.context_tokens if plan else None,
            machines=plan.pipeline if plan else (),
        )

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait for a working pipeline. Raise ClusterUnavailable, with the reason, if there is none in time."""
        await self.readiness.wait(timeout_s)

    async def generate(
        self, request: GenerateRequest, patience_s: float | None = None
    ) -> AsyncGenerator[GenerationEvent]:
        """Yield the events of one request. Raise GenerationError.

        Coordinators and their pipelines may be lost meanwhile. Sent text stays, and the next coordinator continues
        after it. A request waits `patience_s` (READY_PATIENCE_S by default) for its first pipeline, and
        RESUME_PATIENCE_S for another one after each loss.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + (READY_PATIENCE_S if patience_s is None else patience_s)
        resumed = ResumedRequest(request)
        chat = self
        while (turn := await chat.manager.gate.admit(max(0.0, until_s - loop.time()))) is None:
            chat = chat.manager.gate.successor
        pause_s = LOSS_PAUSE_S
        try:
            while True:
                await chat._wait_for_pipeline(resumed, turn, until_s)
                try:
                    client = await chat._open_client()
                    async with contextlib.aclosing(client.generate(resumed.next_try())) as events:
                        async for received in events:
                            if event := resumed.pass_on(received):
                                yield event
                    return
                except (ClusterUnavailable, ProcessLost) as error:
                    is_lost = isinstance(error, ProcessLost)
                    if resumed.note_loss(counts=is_lost) or is_lost:
                        until_s = loop.time() + RESUME_PATIENCE_S
                    if loop.time() >= until_s or resumed.is_hopeless or turn.is_over:
                        raise
                    pause_s = LOSS_PAUSE_S if is_lost else min(2 * pause_s, LOSS_PAUSE_MAX_S)
                    log.info(
                        "request continues", request_id=request.id, reason=error.message, begun=resumed.is_begun
                    )
                    await asyncio.sleep(pause_s)
        finally:
            chat.manager.gate.finish(turn)

    async def _wait_for_pipeline(self, resumed: ResumedRequest, turn: AdmittedRequest, until_s: float) -> None:
        """Wait for a pipeline. Raise ClusterUnavailable.

        A begun answer keeps waiting even if the cluster rejects new requests, but not if its model is stopped.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                left_s = max(0.0, until_s - loop.time())
                await self.readiness.wait_or(left_s, lambda: turn.is_over, is_admitted=True)
            except ClusterUnavailable:
                if not resumed.is_begun or loop.time() >= until_s:
                    raise
                await asyncio.sleep(LOSS_PAUSE_S)
            else:
                if turn.is_over:
                    raise ClusterUnavailable(f"{self.model_name} was stopped")
                return

    async def _open_client(self) -> ModelClient:
        async with self._opening:
            deployment = self.manager.deployment
            if deployment is None:
                raise ClusterUnavailable(self.readiness.status[1])
            return await self._connected(deployment.coordinator)

    async def _use_coordinator(self, coordinator: wire.Address | None) -> None:
        """Connect callers to this coordinator; None disconnects them. Raise ClusterUnavailable if it is silent."""
        if coordinator is None:
            await self._hang_up()
            return
        async with self._opening:
            await self._connected(coordinator)

    async def _connected(self, coordinator: wire.Address) -> ModelClient:
        if self._client is None or not self._client.is_open or self._client.address != coordinator:
            await self._hang_up()
            self._client = await ModelClient.open(coordinator, self._identity, self.manager.deployment_name)
        return self._client

    async def _hang_up(self) -> None:
        """Close the connection to the coordinator. Its requests go on with the next coordinator."""
        client, self._client = self._client, None
        if client:
            await client.close()
