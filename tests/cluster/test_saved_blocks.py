"""KV caches on disk: whole or absent, bounded, private, and the same tokens as without them."""

import gc
import time
import weakref
from dataclasses import replace as replace_fields
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs

from cluster.compute.block_files import OVERHEAD_BYTES, BlockFiles, forget_all
from cluster.compute.kv_cache import KvCache
from cluster.compute.saved_blocks import LOST_NS_MAX, SavedBlocks, judge
from cluster.engine.running_pipeline import warm_up
from cluster.engine.scheduler import Scheduler
from cluster.engine.sequence import Sequence
from cluster.errors import ClusterError
from cluster.models.manifest import Manifest, read_manifest
from cluster.models.model_card import KvShape, ModelCard, read_card
from cluster.models.stage_spec import StageSpec
from cluster.plans.plan import BLOCK_TOKENS
from cluster.wire import Restore, Sampled, Save, Step
from tests.cluster.test_steps import BLOCKS, CPU, DEMO_MODEL, GREEDY, StageChain, prompt_of

KEY, OTHER_KEY = bytes(32), bytes([1]) * 32
SPACE, NAME, CONTENT = "5" * 32, "a" * 32, b"prompts and answers"
CARD = read_card(read_manifest(DEMO_MODEL, "demo").config)
MIB = 2**20
SPEC = StageSpec(
    index=0,
    stages=1,
    first_layer=0,
    end_layer=2,
    precision="fp32",
    context_tokens=1024,
    kv_blocks=64,
    slots=4,
)


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return read_manifest(DEMO_MODEL, "demo")


def block_files(folder: Path, bytes_max: int = MIB, key: bytes = KEY, reserve_bytes: int = 0) -> BlockFiles:
    files = BlockFiles(folder, key, bytes_max, reserve_bytes)
    files.start()
    return files


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*/*"))


def test_a_crash_leaves_a_block_whole_or_absent(tmp_path: Path) -> None:
    """A file that ends at any byte, under its final name or not, is not read and is gone afterwards."""
    files, content = block_files(tmp_path), CONTENT
    assert files.write(SPACE, NAME, content, 1)
    path = tmp_path / SPACE / NAME
    whole = path.read_bytes()
    assert len(whole) == len(content) + OVERHEAD_BYTES
    assert content not in whole, "a disk without its key tells nothing"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert files.read(SPACE, NAME, len(CONTENT)) is None
        assert not path.exists()
        assert files.write(SPACE, NAME, content, 1), "the next save repairs it"
        assert files.read(SPACE, NAME, len(CONTENT)) == bytearray(content)
        path.unlink()
        (unfinished := path.with_name(NAME + ".new")).write_bytes(whole[:length])
        assert files.read(SPACE, NAME, len(CONTENT)) is None
        assert files.names(SPACE) == []
        block_files(tmp_path)
        assert not unfinished.exists()


def test_a_changed_or_foreign_file_is_absent(tmp_path: Path) -> None:
    files = block_files(tmp_path)
    assert files.write(SPACE, NAME, CONTENT, 1)
    path = tmp_path / SPACE / NAME
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert files.read(SPACE, NAME, len(CONTENT)) is None
        assert not path.exists()
    for space, name in ((SPACE, "b" * 32), ("6" * 32, NAME)):  # A block of another prefix, or of another model.
        (tmp_path / space).mkdir(exist_ok=True)
        (tmp_path / space / name).write_bytes(whole)
        assert files.read(space, name, len(CONTENT)) is None
    path.write_bytes(whole)
    assert files.read(SPACE, NAME, len(CONTENT)) == bytearray(CONTENT)
    assert block_files(tmp_path, key=OTHER_KEY).read(SPACE, NAME, len(CONTENT)) is None
    forget_all(tmp_path)
    assert not tmp_path.exists()


@given(
    writes=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=60),
    bytes_max=st.integers(0, 20_000),
)
def test_the_limit_holds_for_all_processes_together(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, int]], bytes_max: int
) -> None:
    """Three processes of one node write blocks of any size; one of them starts again between."""
    folder = tmp_path_factory.mktemp("kv")
    processes = [block_files(folder, bytes_max) for _ in range(3)]
    for used_ns, (process, name) in enumerate(writes, 1):
        size = 75 * name
        written = processes[process].write(SPACE, f"{name:032x}", bytes(size), used_ns)
        assert written == (size + OVERHEAD_BYTES <= bytes_max)
        assert size_of(folder) <= bytes_max
        if written:
            assert processes[0].read(SPACE, f"{name:032x}", size) is not None, "what was just written stays"
        if not used_ns % 7:
            processes[2].close(5)
            processes[2] = block_files(folder, bytes_max)
    smaller = bytes_max // 2
    processes.append(block_files(folder, smaller))
    assert size_of(folder) <= smaller
    for files in processes:
        files.close(5)


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    files = block_files(tmp_path, 10 * 1000)
    for at in range(10):
        assert files.write(SPACE, f"{at:032x}", bytes(1000 - OVERHEAD_BYTES), at + 1)
    assert files.touch(SPACE, f"{0:032x}", 100)
    assert not files.touch(SPACE, NAME, 100)
    assert files.write(SPACE, NAME, bytes(1000 - OVERHEAD_BYTES), 50)
    assert files.names(SPACE)[:3] == [f"{0:032x}", NAME, f"{9:032x}"]
    assert f"{1:032x}" not in files.names(SPACE)


def test_a_full_disk_stops_writing_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = block_files(tmp_path)
    assert files.write(SPACE, NAME, CONTENT, 1)
    with capture_logs() as logs, monkeypatch.context() as full:

        def no_space(*_: object) -> int:
            raise OSError(28, "No space left on device")

        full.setattr(Path, "write_bytes", no_space)
        for at in range(5):
            assert not files.write(SPACE, f"{at:032x}", b"more", 1)
            files._paused_until_s = 0.0
        assert files.read(SPACE, NAME, len(CONTENT)) == bytearray(CONTENT)
    assert [log["event"] for log in logs] == ["KV blocks not saved"], "one line, not one for each block"
    assert files.write(SPACE, "b" * 32, b"more", 1), "it goes on when there is room again"
    shortage = block_files(tmp_path, reserve_bytes=2**60)
    assert not shortage.write(SPACE, "c" * 32, b"more", 1), "some room stays free for others"
    assert size_of(tmp_path) == len(CONTENT) + len(b"more") + 2 * OVERHEAD_BYTES


def test_a_stopped_process_that_keeps_the_lock_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.compute.block_files._LOCK_S", 0.05)
    files = block_files(tmp_path)
    assert files.write(SPACE, NAME, CONTENT, 1)
    with files._lock(), capture_logs() as logs:
        another = block_files(tmp_path)
        assert another.is_paused
        assert not another.write(SPACE, "b" * 32, CONTENT, 1)
        assert another.read(SPACE, NAME, len(CONTENT)) == bytearray(CONTENT)
    assert [log["event"] for log in logs] == ["KV blocks not saved"]


def test_reading_must_be_faster_than_computing() -> None:
    """One delay is no reason to compute. Losses add up; what faster blocks have gained before does not count."""
    ms = 1_000_000
    assert judge(0, 90 * ms, 20 * ms).is_worth_it
    assert judge(0, 90 * ms, 0).lost_ns == 0, "nothing is known yet"
    lost_ns = 0
    for _ in range(10):
        lost_ns = judge(lost_ns, 2 * ms, 500 * ms).lost_ns
    blocks = 0
    while (verdict := judge(lost_ns, 25 * ms, 20 * ms)).is_worth_it:
        lost_ns = verdict.lost_ns
        blocks += 1
    assert blocks == LOST_NS_MAX // (5 * ms)
    assert verdict.reason == "reading took 25.0 ms, computing 20.0 ms; 105.0 ms lost"


class Saved:
    """One slot's blocks as a stage saves them. Each block is filled with the number that its name stands for."""

    def __init__(self, folder: Path, digest: str = "d", spec: StageSpec = SPEC, card: ModelCard = CARD) -> None:
        self.files = block_files(folder, 64 * MIB)
        self.cache = KvCache((KvShape(1, 2, 2),), 64, torch.float32, CPU)
        self.blocks = SavedBlocks(self.files, card, digest, spec, self.cache)

    def fill(self, slot: int, values: list[int], first_block: int = 0) -> None:
        start = first_block * BLOCK_TOKENS
        rows = torch.tensor(values, dtype=torch.float32).repeat_interleave(BLOCK_TOKENS)[:, None, None]
        self.cache.reserve(slot, start + len(rows))
        self.cache.write(0, slot, start, rows.expand(-1, 1, 2), rows.expand(-1, 1, 2))

    def save(self, slot: int, values: list[int]) -> None:
        self.blocks.save(Save(slot, [name_of(value) for value in values]))

    def write_all(self) -> None:
        while self.blocks.has_pending:
            if not self.blocks.save_next():
                time.sleep(0.001)

    def restore(self, slot: int, values: list[int], first_block: int = 0) -> list[float]:
        """Return the restored blocks' numbers; all rows of a block must have the same."""
        self.blocks.look()
        names = [name_of(value) for value in values]
        answer = self.blocks.restore(Restore(slot, first_block, len(names), names))
        found: list[float] = []
        for at in range(first_block, first_block + len(answer.names)):
            block = torch.stack([torch.unique(part) for part in self.cache._block(slot, at)])
            assert block.shape == (2, 1)
            found.append(float(block[0, 0]))
        return found


def name_of(value: int) -> bytes:
    return value.to_bytes(16, "big")


def test_a_slot_is_saved_while_it_holds_what_its_names_say(tmp_path: Path) -> None:
    """Blocks that are freed or overwritten before they could be copied are not saved under their old names."""
    saved = Saved(tmp_path)
    saved.fill(0, [1, 2, 3])
    saved.fill(1, [4, 5])
    saved.save(0, [1, 2, 3])
    saved.save(1, [4, 5])
    saved.blocks.forget_slot(0, 1)
    saved.fill(0, [8, 9], first_block=1)
    saved.blocks.forget_slot(1)
    saved.cache.free(1)
    saved.write_all()
    saved.files.close(5)
    again = Saved(tmp_path)
    assert again.restore(2, [1, 2, 3]) == [1]
    assert again.restore(3, [4, 5]) == []
    assert again.cache.loaded_stages() == {2: 3, 3: 2}, "the coordinator counts what it asked for"
    again.fill(0, [6])
    again.save(0, [6])
    again.blocks.forget_slots()
    again.write_all()
    again.files.close(5)
    assert Saved(tmp_path).restore(0, [6]) == []


def test_saving_keeps_no_cache_of_dropped_layers(tmp_path: Path) -> None:
    """The next layers need its memory: the thread that writes must not hold it, also while it waits."""
    saved = Saved(tmp_path)
    saved.fill(0, [1])
    saved.save(0, [1])
    saved.write_all()
    saved.save(0, [1])
    files, cache = saved.files, weakref.ref(saved.cache)
    while files.names(saved.blocks._space) != [name_of(1).hex()]:
        time.sleep(0.001)
    del saved
    gc.collect()
    assert cache() is None
    files.close(5)


@pytest.mark.parametrize(
    ("digest", "changed"),
    [
        ("d", {"precision": "bf16"}),
        ("d", {"first_layer": 1}),
        ("d", {"end_layer": 3}),
        ("d", {"wire": "int8"}),
        ("other weights", {}),
    ],
)
def test_other_versions_weights_precisions_and_layers_never_match(
    tmp_path: Path, digest: str, changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = Saved(tmp_path)
    saved.fill(0, [1])
    saved.save(0, [1])
    saved.write_all()
    saved.files.close(5)
    assert Saved(tmp_path, digest, replace(SPEC, **changed)).restore(0, [1]) == []
    # Another length of the context matters to models that rotate keys by it.
    longer = replace(SPEC, context_tokens=2048)
    assert Saved(tmp_path, spec=longer).restore(0, [1]) == [1]
    bound = replace_fields(CARD, rope=replace_fields(CARD.rope, kind="longrope"))
    spaces = {Saved(tmp_path, spec=spec, card=bound).blocks._space for spec in (SPEC, longer)}
    assert len(spaces) == 2
    monkeypatch.setattr("cluster.compute.saved_blocks.PROGRAM", "the next version")
    assert Saved(tmp_path).restore(0, [1]) == []


def test_a_slow_disk_is_not_read_again_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first slow block is used, since it has been read. The rest is computed, until the disk is tried again."""
    for values, block_ns in (([1, 2, 3], 1_000_000), ([4, 5, 6], 60_000_000_000)):
        saved = Saved(tmp_path)
        saved.blocks.observe(BLOCK_TOKENS, block_ns)
        saved.fill(0, values)
        saved.save(0, values)
        saved.write_all()
        saved.files.close(5)
    again = Saved(tmp_path)
    monkeypatch.setattr("cluster.compute.saved_blocks.LOST_NS_MAX", 0)
    read = BlockFiles.read

    def read_slowly(files: BlockFiles, space: str, name: str, size: int) -> bytearray | None:
        time.sleep(0.002)
        return read(files, space, name, size)

    monkeypatch.setattr(BlockFiles, "read", read_slowly)
    with capture_logs() as logs:
        assert again.restore(0, [1, 2, 3]) == [1]
        assert again.restore(1, [4, 5, 6]) == []
    assert [log["event"] for log in logs] == ["KV blocks computed again"]
    again.blocks._slow_until_s = 0.0
    assert again.restore(2, [4, 5, 6]) == [4, 5, 6], "computing these took a minute each"


@pytest.fixture
def any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore blocks however slow the disk of a busy machine is."""
    monkeypatch.setattr("cluster.compute.saved_blocks.LOST_NS_MAX", 10**18)


class SavingChain(StageChain):
    """A chain whose stages save their blocks, each in its own folder."""

    def __init__(
        self,
        manifest: Manifest,
        stages: int,
        folder: Path,
        device: torch.device = CPU,
        key: bytes = b"coordinator",
    ) -> None:
        super().__init__(manifest, stages, device=device)
        self.scheduler.saved.key = key
        self.files = [block_files(folder / str(at), 512 * MIB, key=bytes([at]) * 32) for at in range(stages)]
        for at, (stage, files) in enumerate(zip(self.stages, self.files, strict=True)):
            saved = SavedBlocks(files, stage.card, stage.digest, stage.spec, stage.model.cache)
            self.stages[at] = replace_fields(stage, saved=saved)
        self.connect()

    def connect(self) -> None:
        """Ask all stages what they have saved, as the first step of a pipeline does."""
        frame: Step | Sampled = warm_up(1)
        for stage in self.stages:
            assert isinstance(frame, Step)
            assert stage.saved
            stage.saved.look()
            frame, _ = stage.run(frame, bytearray())
        assert isinstance(frame, Sampled)
        self.scheduler.saved.learn(frame.held)

    def lose(self, *indices: int) -> None:
        super().lose(*indices)
        for index in indices:
            stage = self.stages[index]
            saved = SavedBlocks(self.files[index], stage.card, stage.digest, stage.spec, stage.model.cache)
            self.stages[index] = replace_fields(stage, saved=saved)
        self.connect()

    def save_next(self) -> bool:
        return sum(stage.saved.save_next() for stage in self.stages if stage.saved) > 0

    def ask(self, prompt: list[int], tokens: int = 8, salt: str = "us") -> Sequence:
        sequence = Sequence(list(prompt), len(prompt), GREEDY, tokens_max=len(prompt) + tokens, salt=salt)
        self.scheduler.add(sequence)
        self.run()
        return sequence

    def save_all(self) -> None:
        while any(stage.saved and stage.saved.has_pending for stage in self.stages):
            if not self.save_next():
                time.sleep(0.001)

    def end(self) -> None:
        """Stop all processes, once they have saved everything."""
        self.save_all()
        for files in self.files:
            files.close(5)


@pytest.mark.usefixtures("any_speed")
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_prompts_survive_a_restart_with_the_same_tokens(
    manifest: Manifest, tmp_path: Path, stages: int, stage_device: torch.device
) -> None:
    prompt = prompt_of(500, 1)
    plain = SavingChain(manifest, stages, tmp_path / "other", stage_device)
    longer = [*plain.ask(prompt).tokens, *prompt_of(60, 2)]
    expected = [plain.ask(prompt).tokens, plain.ask(longer).tokens]
    first = SavingChain(manifest, stages, tmp_path, stage_device)
    assert first.ask(prompt).reused_tokens == 0
    first.end()
    again = SavingChain(manifest, stages, tmp_path, stage_device)
    answers = [again.ask(prompt), again.ask(longer)]
    assert [answer.tokens for answer in answers] == expected
    assert answers[0].reused_tokens == 7 * BLOCK_TOKENS
    assert again.ask([*prompt[:300], 7]).reused_tokens == 4 * BLOCK_TOKENS, "from memory"
    again.end()


def test_a_stage_refuses_to_save_blocks_that_it_does_not_hold(manifest: Manifest, tmp_path: Path) -> None:
    """It copies blocks between steps, where an error would end its process."""
    chain = SavingChain(manifest, 1, tmp_path)
    chain.ask(prompt_of(100, 1))
    chain.save_all()
    [(slot, blocks)] = chain.stages[0].model.cache.loaded_stages().items()
    for order in (Save(slot, [bytes(16)] * (blocks + 1)), Save(slot + 1, [bytes(16)])):
        with pytest.raises(ClusterError, match="holds fewer"):
            chain.stages[0].run(replace(warm_up(1), batch=1, saves=[order]), bytearray())
        assert not chain.save_next()
    chain.end()


@pytest.mark.usefixtures("any_speed")
def test_tenants_share_nothing_on_disk(manifest: Manifest, tmp_path: Path) -> None:
    prompt = prompt_of(500, 1)
    first = SavingChain(manifest, 1, tmp_path)
    first.ask(prompt, salt="us")
    first.end()
    again = SavingChain(manifest, 1, tmp_path)
    assert again.ask(prompt, salt="them").reused_tokens == 0
    assert again.ask(prompt, salt="us").reused_tokens == 7 * BLOCK_TOKENS
    again.end()
    other_coordinator = SavingChain(manifest, 1, tmp_path, key=b"another")
    assert other_coordinator.ask(prompt, salt="us").reused_tokens == 0, "names are secret, too"


@pytest.mark.usefixtures("any_speed")
def test_a_slot_that_was_taken_over_is_not_saved_under_its_old_names(manifest: Manifest, tmp_path: Path) -> None:
    """The only slot goes to two other prompts before there was time to save: one begins alike, one does not."""
    prompt = prompt_of(500, 1)
    for number, other in enumerate(([*prompt[:300], *prompt_of(200, 2)], prompt_of(500, 3))):
        chain = SavingChain(manifest, 1, tmp_path / str(number))
        chain.scheduler = Scheduler(1, 1, 1, BLOCKS, chain.scheduler.saved)
        expected = chain.ask(prompt).tokens
        sequence = chain.add(other, 8)
        sequence.salt = "us"
        while not sequence.output_tokens:
            chain.turn()
        chain.end()
        again = SavingChain(manifest, 1, tmp_path / str(number))
        answer = again.ask(prompt)
        again.end()
        assert answer.tokens == expected
        assert answer.reused_tokens == (0 if number else 4 * BLOCK_TOKENS)


@pytest.mark.usefixtures("any_speed")
def test_stages_restore_what_all_of_them_have(manifest: Manifest, tmp_path: Path) -> None:
    """One stage's disk has lost the end of the prefix, another's has a damaged block before that."""
    prompt = prompt_of(700, 1)
    first = SavingChain(manifest, 3, tmp_path)
    expected = first.ask(prompt).tokens
    first.end()
    oldest_first = [
        sorted((tmp_path / str(at)).glob("*/*"), key=lambda p: p.stat().st_mtime_ns) for at in range(3)
    ]
    assert [len(paths) for paths in oldest_first] == [11, 11, 11]
    oldest_first[1][0].unlink()  # The last block of the prefix.
    again = SavingChain(manifest, 3, tmp_path)
    assert len(again.scheduler.saved._known) == 10
    damaged = oldest_first[2][5]  # Block 5 of 0 to 10, damaged after the stage has looked.
    damaged.write_bytes(damaged.read_bytes()[:-1])
    answer = again.ask(prompt)
    assert answer.tokens == expected
    assert answer.reused_tokens == 5 * BLOCK_TOKENS
    again.end()
    assert damaged.exists(), "it was computed and saved again"


@pytest.mark.usefixtures("any_speed")
def test_lost_stages_and_saved_blocks_change_no_token(
    manifest: Manifest, tmp_path: Path, stage_device: torch.device
) -> None:
    """Any of two stages is lost at any time, slots are few, and blocks are saved whenever there happens to be time."""
    chance, system = Random(1), prompt_of(330, 1)
    prompts = [[*system, *prompt_of(chance.randrange(10, 300), seed)] for seed in range(3)]
    calm = StageChain(manifest, 2, device=stage_device)
    expected = []
    for prompt in prompts:
        sequence = calm.add(prompt, 12)
        calm.run()
        expected.append(sequence.tokens)
    chain = SavingChain(manifest, 2, tmp_path, stage_device)
    restored = 0
    for _ in range(3):
        sequences = [chain.add(prompt, 12) for prompt in prompts]
        while chain.turn():
            restored += sum(len(order.names) for order in chain.steps[-1].restores)
            while chance.random() < 0.8 and chain.save_next():
                pass
            if chance.random() < 0.1:
                chain.lose(*(index for index in range(2) if chance.random() < 0.5))
        chain.run()
        assert [sequence.tokens for sequence in sequences] == expected
        chain.save_all()
        chain.lose(0, 1)
    assert restored > 10
