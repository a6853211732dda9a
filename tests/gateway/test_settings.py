"""Settings: strongest source wins, unknown names are refused, what is written down is what there is."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.settings import read_settings, refuse_unknown, variables
from runtime.settings import SettingsInvalid


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MILLRACE_DATA_DIR", str(tmp_path))


def test_the_command_line_beats_the_environment_beats_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "millrace.toml").write_text("[cluster]\nnodes = 1\nslots = 7\n[server]\nport = 1\n")
    monkeypatch.setenv("MILLRACE_CLUSTER__NODES", "2")
    monkeypatch.setenv("MILLRACE_SERVER__PORT", "2")
    settings = read_settings(server={"port": 3})
    assert (settings.server.port, settings.cluster.nodes, settings.cluster.slots) == (3, 2, 7)


def test_nested_values_and_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_CLOUD__MODELS", '{"fast": {"model": "openai/gpt-4o-mini"}}')
    monkeypatch.setenv("MILLRACE_POLICY__LANES", '["pool"]')
    settings = read_settings()
    assert settings.cloud.models["fast"].model == "openai/gpt-4o-mini"
    assert settings.policy.lanes == ("pool",)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("MILLRACE_SERVER__PROT", "1", "did you mean MILLRACE_SERVER__PORT"),
        ("MILLRACE_NONSENSE", "1", "MILLRACE_NONSENSE is not a setting"),
        ("MILLRACE_SERVER__PORT", "many", "server.port: "),
        ("MILLRACE_SERVER__PORT", "70000", "server.port: "),
        ("MILLRACE_LOG__LEVEL", "loud", "log.level: "),
        ("MILLRACE_POLICY__LANES", '["moon"]', "policy.lanes"),
        ("MILLRACE_POLICY__LANES", "cluster,pool", r'^MILLRACE_POLICY__LANES: JSON expected, such as \["cluster"'),
        ("MILLRACE_SERVER__TRUSTED_PROXIES", '["::/0"]', r"server\.trusted_proxies: .*every client"),
        ("MILLRACE_SERVER__TRUSTED_PROXIES", '["::ffff:0:0/96"]', r"server\.trusted_proxies: .*every client"),
        (
            "MILLRACE_CLUSTER__MODELS",
            '[{"name": "a", "model": "m"}, {"name": "a", "model": "n"}]',
            r"cluster: .*the name a is used twice",
        ),
        (
            "MILLRACE_CLUSTER__MODELS",
            '[{"name": "a", "model": "m", "kind": "rerank"}]',
            r"cluster\.models\.0\.kind",
        ),
        ("MILLRACE_POOL__BACKENDS", "x", "^MILLRACE_POOL__BACKENDS: JSON expected"),
        ("MILLRACE_CLOUD__MODELS__fast", "x", "^MILLRACE_CLOUD__MODELS__fast: JSON expected"),
        ("MILLRACE_CLOUD__KEYS_FILE", "~nobody-here/x", r"cloud\.keys_file: "),
        ("MILLRACE_IDENTITY__SECRET", "changethis", r"identity\.secret: .*openssl rand"),
        (
            "MILLRACE_CLOUD__MODELS",
            '{"x": {"model": "m", "regoin": "eu"}}',
            r"did you mean cloud\.models\.x\.region\?$",
        ),
        (
            "MILLRACE_CLOUD__MODELS",
            '{"x": {"model": "m", "prompt_usd_per_mtok": "1e3", "completion_usd_per_mtok": "1"}}',
            r"cloud\.models\.x\.prompt_usd_per_mtok: .*decimal string",
        ),
        (
            "MILLRACE_CLOUD__MODELS",
            '{"x": {"model": "m", "completion_usd_per_mtok": "1"}}',
            r"cloud\.models\.x: .*set both or neither",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsInvalid, match=message):
        read_settings()


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text("[server\n")
    with pytest.raises(SettingsInvalid, match=r"millrace\.toml"):
        read_settings()
    file.write_bytes(b"# caf\xe9\n")
    with pytest.raises(SettingsInvalid, match=r"millrace\.toml: not UTF-8"):
        read_settings()
    file.unlink()
    file.mkdir()
    with pytest.raises(SettingsInvalid, match=r"millrace\.toml: cannot be read"):
        read_settings()


def test_a_path_means_what_a_shell_would_make_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "millrace.toml").write_text('[cloud]\nkeys_file = "keys"\n')
    monkeypatch.setenv("MILLRACE_DATA_DIR", "~/x")
    settings = read_settings()
    assert settings.data_dir == tmp_path / "x"
    assert settings.cloud.keys_file == tmp_path / "keys"
    assert read_settings(data_dir=Path("~/y")).data_dir == tmp_path / "y"


def test_every_setting_has_a_variable_and_a_description() -> None:
    listed = {variable.name: variable for variable in variables()}
    assert "MILLRACE_CLUSTER__MODEL" in listed
    assert all(variable.description for variable in listed.values())
    refuse_unknown(dict.fromkeys(listed, "x"))


def test_a_default_is_written_as_one_sets_it() -> None:
    defaults = {variable.name: variable.default for variable in variables()}
    assert defaults["MILLRACE_POLICY__LANES"] == '["cluster", "pool"]'
    assert defaults["MILLRACE_ROUTING__HEDGING"] == "true"
    assert defaults["MILLRACE_CLUSTER__MEMORY_SHARE"] == "1"
    assert defaults["MILLRACE_CLUSTER__MODEL"] == defaults["MILLRACE_POOL__BACKENDS"] == ""


def test_secrets_do_not_print(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_DATABASE__DSN", "postgresql://me:hunter2@db/x")
    assert "hunter2" not in repr(read_settings())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[server]\nprot = 1\n", "server.prot: is not a setting; did you mean server.port?"),
        ("[severs]\nport = 1\n", "severs: is not a setting; did you mean server?"),
        ("port = 1\n", "port: is not a setting; did you mean server.port?"),
        ('[[pool.backends]]\nname = "a"\nbase_ulr = "http://a"\n', "did you mean pool.backends.0.base_url?"),
        ("[server]\nnonsense = 1\n", "server.nonsense: is not a setting"),
    ],
)
def test_a_typing_error_in_the_file_gets_the_nearest_setting(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "millrace.toml").write_text(text)
    refused = CliRunner().invoke(app, ["config", "show", "--data-dir", str(tmp_path)])
    assert refused.exit_code != 0
    assert said in " ".join(refused.stderr.split())


def test_a_further_model_must_not_have_the_name_of_the_first_ones_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_CLUSTER__MODELS", '[{"name": "gateway", "model": "m"}]')
    for name in ("MODEL", "EMBEDDING_MODEL"):
        with monkeypatch.context() as patched:
            patched.setenv(f"MILLRACE_CLUSTER__{name}", f"{Path(__file__).parent}/")
            with pytest.raises(SettingsInvalid, match="the name gateway is used twice"):
                read_settings()
    monkeypatch.setenv("MILLRACE_CLUSTER__MODEL", f"{Path(__file__).parent}/")
    monkeypatch.setenv("MILLRACE_CLUSTER__SERVED_NAME", "other")
    assert read_settings().cluster.models[0].name == "gateway"
