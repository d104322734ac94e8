from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention import registry
from kernels.attention.config import Config
from tests.tuner.store import samples, strategies
from tuner.standing import standing
from tuner.store import layers as layers_module
from tuner.store.database import Store
from tuner.store.errors import StoreError
from tuner.store.layers import Layers
from tuner.store.publish import publish
from tuner.trial import Candidate

OTHER = replace(samples.PROBLEM, seqlen=1024)


def make(number, median_ms=1.0, **changes):
    return samples.bare_record(number, median_ms, **changes)


def test_the_users_record_hides_a_faster_shipped_one():
    mine, shipped = make(1, 2.0), make(2, 1.0)
    assert Layers([mine], [shipped]).standing() == [mine]


def test_a_record_that_cannot_launch_hides_none_that_can():
    template = registry.get("portable")
    good = Candidate("portable", template.default(samples.PROBLEM, 90))
    living = make(1, 2.0, candidate=good, template_version=template.version)
    older = replace(living, template_version="0123456789ab", uid="")
    refused = Candidate("portable", Config(good.config, num_stages=7))
    dead = replace(living, candidate=refused, uid="")
    for mine in (older, dead):
        assert Layers([mine], [living]).standing() == [living]
        assert Layers([mine], []).standing() == [mine]
        for faster in (replace(mine, measurement=make(2, 1.0).measurement, uid=""), mine):
            assert Layers([faster, living], []).standing() == [living]
    assert Layers([older], [dead]).standing() == [older]


def test_what_the_user_lacks_shows_through():
    mine, shipped, hidden = make(1), make(2, problem=OTHER), make(3)
    layers = Layers([mine], [shipped, hidden])
    assert set(layers.standing()) == {mine, shipped}


def test_a_replayed_record_never_hides_a_measured_one_below():
    replayed = make(1, 0.5, origin="replay")
    measured, replayed_below = make(2, 2.0), make(3, 0.1, origin="replay", problem=OTHER)
    replayed_above = make(4, 0.2, origin="replay", problem=OTHER)
    layers = Layers([replayed, replayed_above], [measured, replayed_below])
    assert set(layers.standing()) == {measured, replayed_above}
    superseding = make(5, 0.5, origin="replay", supersedes=(measured.uid,))
    assert Layers([superseding], [measured]).standing() == [measured]


def test_a_shipped_verdict_on_the_users_record_stands():
    mine = make(1, 1.0)
    verdict = make(2, 1.1, supersedes=(mine.uid,))
    assert Layers([mine], [mine, verdict]).standing() == [verdict]
    assert Layers([mine, verdict], [mine]).standing() == [verdict]


@given(strategies.related_records(), st.data())
def test_every_key_has_one_in_a_fixed_order_and_one_layer_is_as_none(records, data):
    user = data.draw(st.lists(st.sampled_from(records), unique=True)) if records else []
    layers = Layers(user, records)
    assert [record.key for record in layers.standing()] == sorted({r.key for r in records})
    for layer in (Layers(records, []), Layers([], records), Layers(records, records)):
        assert {r.key: r for r in layer.standing()} == standing(records)
    shuffled = data.draw(st.permutations(records))
    again = Layers(user[::-1], shuffled)
    assert again.standing() == layers.standing()
    assert again.snapshot_hash() == layers.snapshot_hash()


def test_the_snapshot_hash_is_of_what_stands():
    one, hidden, two = make(1, 1.0), make(2, 2.0), make(3, problem=OTHER)
    layers = Layers([one], [two])
    assert layers.snapshot_hash() == Layers([], [two, hidden, one]).snapshot_hash()
    assert layers.snapshot_hash() == Layers([two], [one]).snapshot_hash()
    assert layers.snapshot_hash() != Layers([one], []).snapshot_hash()
    assert len(layers.snapshot_hash()) == 16


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    path = tmp_path / "shipped.db"
    publish(path, [make(2, 3.0), make(3, problem=OTHER)])
    monkeypatch.setattr(layers_module, "shipped_database", lambda: path)
    return path


def test_loading_a_user_database_that_was_never_made_is_silent(shipped, own_data_folder, caplog):
    for strict in (True, False):
        assert len(Layers.load(strict=strict).standing()) == 2
    assert caplog.messages == []
    assert list(own_data_folder.iterdir()) == []


def test_loading_one_that_is_named_and_missing_is_an_error(shipped, tmp_path, caplog):
    path = tmp_path / "missing.db"
    with pytest.raises(StoreError, match="does not exist"):
        Layers.load(path)
    assert len(Layers.load(path, strict=False).standing()) == 2
    assert caplog.messages == [f"{path} does not exist; going on without its records"]


def test_a_broken_user_database_leaves_the_shipped_records(shipped, own_data_folder, caplog):
    (own_data_folder / "tuner.db").write_text("broken")
    with pytest.raises(StoreError, match="is not an SQLite database"):
        Layers.load()
    assert len(Layers.load(strict=False).standing()) == 2
    assert len(caplog.messages) == 1


def test_broken_shipped_records_leave_the_users(shipped, tmp_path, caplog):
    shipped.write_text("broken")
    with Store.open(tmp_path / "mine.db") as store:
        store.add_record(make(1))
    with pytest.raises(StoreError, match=r"shipped\.db is not an SQLite database"):
        Layers.load(tmp_path / "mine.db")
    assert Layers.load(tmp_path / "mine.db", strict=False).standing() == [make(1)]


def test_an_installation_without_shipped_records_says_so(monkeypatch, caplog):
    monkeypatch.setattr(layers_module, "shipped_database", lambda: None)
    assert Layers.load(strict=False).standing() == []
    assert "lacks the shipped records" in caplog.messages[0]


def test_opening_makes_the_users_database_and_writes_there(shipped, own_data_folder):
    before = shipped.read_bytes()
    with Layers.open() as layers:
        assert len(layers.standing()) == 2
        assert layers.store.add_record(make(1))
    assert (own_data_folder / "tuner.db").exists()
    assert make(1) in Layers.load().standing()
    assert shipped.read_bytes() == before
