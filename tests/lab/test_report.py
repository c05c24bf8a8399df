"""The report: one page that is whole, fetches nothing, and says what the records say."""

import itertools
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from ctrlax.errors import UserError
from ctrlax.lab import pictures, report
from ctrlax.lab.gallery import Shown
from ctrlax.lab.page import Figure, Section, Table, Text, page, shown

QUICK: dict[str, Any] = {
    "schedule__rounds": 1, "fit__updates": 4, "fit__matching_updates": 0, "fit__warmup_updates": 0, "agent__updates": 4,
    "agent__starts": 4, "agent__horizon": 0.5, "model__members": 2, "schedule__trials": 2,
    "schedule__trial_seconds": 3.0,
}  # fmt: skip
VOID = {"meta", "img", "br", "link"}

pytestmark = pytest.mark.slow


class Balanced(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen, self.ids = [], set(), []

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def read(text):
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    return parser


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from ctrlax.lab.run import train

    return train("pendulum", seeds=[3, 5], out=tmp_path_factory.mktemp("report") / "run", **QUICK)


@pytest.fixture(scope="module")
def written(run):
    return report.write(run).read_text()  # draws the pictures too: there are none


def test_the_page_is_whole_and_fetches_nothing(written):
    parser = read(written)
    assert "script" not in parser.seen
    assert len(parser.ids) == len(set(parser.ids))
    outside = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?!data:|#|[\w-]*-?image)(\w+:[^"')\s]*)""", written)
    assert outside == []
    assert "default-src 'none'" in written


def test_the_page_says_what_the_records_say(run, written):
    assert "<h1>pendulum: solved by 0 of 2 seeds</h1>" in written
    for row in run.rows("round"):
        assert f"{row['field_evaluations']:,}" in written
    for name in ("model.members", "schedule.rounds", run.header["versions"]["jax"], "data:image/gif;base64,"):
        assert name in written
    for title in ("Learning", "The policy at work", "Imagined and true trajectories", "Losses within rounds"):
        assert f"<h3>{title}</h3>" in written


def test_differences_are_those_asked_for(run):
    assert {name: now for name, _, now in report.differences(run)} == {
        name.replace("__", "."): value for name, value in QUICK.items()
    }


def test_the_command_repeats_the_run(run):
    import shlex

    from ctrlax.commands.train import parse_seeds, parse_settings
    from ctrlax.lab.run import prepare

    words = shlex.split(report.commands(run)[0][1])
    assert words[:3] == ["ctrlax", "train", "pendulum"]
    seeds = parse_seeds(words[words.index("--seeds") + 1])
    given = parse_settings(tuple(after for word, after in itertools.pairwise(words) if word == "--set"))
    _, configuration, _ = prepare(
        "pendulum", seeds=seeds, preset=words[words.index("--preset") + 1], **dict[str, Any](given)
    )
    assert json.loads(json.dumps(configuration)) == run.header["configuration"]


def test_report_draws_again_from_the_records(run, written, tmp_path):
    import shutil

    from ctrlax.lab.run import Run

    copy = tmp_path / "copy"
    shutil.copytree(run.folder, copy)
    shutil.rmtree(copy / pictures.FOLDER)
    again = Run(copy)
    drawn = {path.name: path.read_bytes() for path in pictures.draw_all(again)}
    assert drawn == {name: (run.folder / pictures.FOLDER / name).read_bytes() for name in drawn}
    assert "landscape.png" in drawn
    assert report.write(again).read_text() == written.replace(str(run.folder), str(copy))


def test_without_a_library_that_draws_it_is_still_a_report(run, tmp_path, monkeypatch):
    import shutil

    from ctrlax.lab.run import Run

    def nothing_draws(_):
        raise UserError("Pictures need matplotlib: pip install matplotlib.")

    monkeypatch.setattr(pictures, "draw_all", nothing_draws)
    copy = tmp_path / "copy"
    shutil.copytree(run.folder, copy, ignore=shutil.ignore_patterns(pictures.FOLDER))
    assert "Pictures need matplotlib" in report.write(Run(copy)).read_text()


def test_what_comes_from_outside_is_escaped():
    text = page("<b>", "a & b", [Section("<i>", [Text("<u>"), Table(("<s>",), [("<q>",)])])])
    assert not {"b", "i", "u", "s", "q"} & read(text).seen


def test_ids_of_two_pictures_do_not_meet(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.svg").write_text(
            '<svg width="72pt" height="9pt"><g id="a" clip-path="url(#a)" style="fill: #0072B2"/></svg>'
        )
    text = Figure(Shown("t", "c", (tmp_path / "one.svg", tmp_path / "two.svg"))).html()
    assert text.count('id="one-a"') == text.count("url(#two-a)") == 1
    assert text.count("var(--blue)") == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (float("nan"), "-"), (True, "yes"), (12345, "12,345"), (0.123456, "0.1235"), (("a", "b"), "a, b")],
)
def test_values_as_a_reader_wants_them(value, text):
    assert shown(value) == text


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    from ctrlax import cli

    for folder, words in ((tmp_path / "absent", "is no folder"), (tmp_path, "is no run")):
        with pytest.raises(SystemExit) as ended:
            cli.main(["report", str(folder)])
        assert ended.value.code == 2
        assert words in capsys.readouterr().err
