"""A damaged profile is refused in one line that names the field; the shipped ones are sound."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import ProfileError
from simulator.profile import find_profile, parse_profile, profile_names, read_profile, shipped_profiles

FIELDS: dict[str, Any] = {
    "format": "servetwin-profile/1",
    "kind": "measured",
    "model": "meta-llama/Llama-3.1-8B",
    "hardware": "h100-sxm",
    "dtype": "bfloat16",
    "tensor_parallel": 1,
    "host": {"iteration_ns": 1000, "row_ns": 2},
    "operators": {
        "dense": {"tokens": [1, 8, 64], "ns": [100, 100, 500]},
        "head": {"rows": [1, 64], "ns": [10, 20]},
        "prefill_attention": {
            "pairs_per_token": 64,
            "pairs_per_chunk": 0,
            "keys_per_token": 512,
            "effective_pairs": [100, 10000],
            "ns": [30, 300],
        },
        "decode_attention": {"rows": [1, 4], "contexts": [16, 256], "ns": [[5, 40], [9]]},
    },
}


def parse(fields: dict[str, Any]) -> Any:
    return parse_profile(json.dumps(fields), "mine", "mine.json")


def changed(path: str, value: object) -> dict[str, Any]:
    fields = copy.deepcopy(FIELDS)
    *folders, last = path.split(".")
    place = fields
    for folder in folders:
        place = place[folder]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return fields


def test_a_sound_profile_is_read() -> None:
    profile = parse(FIELDS)
    assert (profile.name, profile.kind, profile.host_ns, profile.host_row_ns) == (
        "mine",
        "measured",
        1000,
        2,
    )
    assert profile.by_tokens["dense"].ns == (100, 100, 500)
    assert profile.decode_attention.ns == ((5, 40), (9,))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", "other", '"format" must be "servetwin-profile/1"'),
        ("kind", "guessed", "kind must be measured, imported or roofline, not 'guessed'"),
        ("model", ..., "model must be a name, not missing"),
        ("tensor_parallel", 0, "tensor_parallel must be a whole number >= 1, not 0"),
        ("tensor_parallel", 2, "operator 'all_reduce' is missing"),
        ("operators.head", ..., "operator 'head' is missing; an unpriced operator would count as free"),
        ("operators.prefill_attention", ..., "operator 'prefill_attention' is missing"),
        ("operators.dense.ns", [100, 100, 500, 600], "operators.dense has 3 knots but 4 times"),
        ("operators.dense.ns", [100, 90, 500], "operators.dense.ns falls from 100 to 90"),
        (
            "operators.dense.ns",
            [-1, 90, 500],
            "operators.dense.ns[0] must be a number >= 0 and below 1e+18, not -1",
        ),
        ("operators.dense.ns", [1, True, 500], "operators.dense.ns[1] must be a number"),
        ("operators.dense.ns", [1, 10**400, 5], "operators.dense.ns[1] must be a number"),
        (
            "operators.dense.ns",
            [1, "2", 500],
            'operators.dense.ns[1] must be a number >= 0 and below 1e+18, not "2"',
        ),
        ("operators.dense.ns", [], "operators.dense.ns must be a list of numbers, not an empty list"),
        (
            "operators.dense.tokens",
            [8, 1, 64],
            "operators.dense.tokens must be > 0 and rise from knot to knot",
        ),
        ("operators.dense.tokens", [0, 1, 64], "operators.dense.tokens must be > 0"),
        ("operators.dense", 7, "dense must be an object, not 7"),
        (
            "operators.decode_attention.rows",
            [1, 2, 4],
            "operators.decode_attention has 3 rows but 2 lists of times",
        ),
        (
            "operators.decode_attention.rows",
            [1, 2.5],
            "operators.decode_attention.rows must be whole numbers",
        ),
        ("operators.decode_attention.ns", [[5, 40, 50], [9]], "ns[0] has 3 times but there are 2 contexts"),
        (
            "operators.decode_attention.ns",
            [[5, 40], [4]],
            "4 rows take less time than 1 at the same context",
        ),
        (
            "operators.prefill_attention.windowed_share",
            1.5,
            "windowed_share must be between 0 and 1, not 1.5",
        ),
        ("host.iteration_ns", ..., "host.iteration_ns must be a number >= 0 and below 1e+18, not missing"),
        ("notes", "one", 'notes must be a list of sentences, not "one"'),
    ],
)
def test_damage_is_named_in_one_line(path: str, value: object, message: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse(changed(path, value))
    assert message in str(caught.value)
    assert str(caught.value).startswith("profile mine.json: ")
    assert "\n" not in str(caught.value)


def test_infinity_and_truncation_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(changed("host.iteration_ns", float("nan"))))
    with pytest.raises(ProfileError, match="holds NaN; every number must be finite"):
        read_profile(path)
    path.write_text(json.dumps(FIELDS)[:-20])
    with pytest.raises(ProfileError, match=r"p.json:1: not valid JSON"):
        read_profile(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProfileError, match="not a text file"):
        read_profile(path)
    with pytest.raises(ProfileError, match="cannot be read: No such file"):
        read_profile(tmp_path / "absent.json")


def test_profiles_are_found_by_name_and_by_path(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(FIELDS))
    assert find_profile("mine.json", tmp_path).name == "mine"
    name = profile_names()[0]
    assert find_profile(name, tmp_path).name == name
    with pytest.raises(ProfileError, match=f"'nothing' is not known.*{name}"):
        find_profile("nothing", tmp_path)


def test_shipped_profiles_cover_the_promised_machines_and_state_their_error() -> None:
    held = {(p.hardware, p.model, p.tensor_parallel) for p in shipped_profiles()}
    for hardware in ("h100-sxm", "h200-sxm", "a100-80-sxm"):
        assert (hardware, "meta-llama/Llama-3.1-8B", 1) in held
        assert (hardware, "meta-llama/Llama-3.1-70B", 4) in held
    folder = Path(__file__).parents[2] / "calibration" / "profiles"
    for name in profile_names():
        fields = json.loads((folder / f"{name}.json").read_text())
        assert fields["source"]["licence"].startswith("Apache-2.0")
        assert set(fields["operators"]) <= set(fields["held_out_error"])
        assert all(0 <= error["median"] <= error["p95"] for error in fields["held_out_error"].values())
