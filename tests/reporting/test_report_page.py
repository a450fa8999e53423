"""The page about runs, the command that writes it and the server of a live one."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from rlstack.command import words_as
from rlstack.config import ConfigError
from rlstack.reporting.blocks import Panels
from rlstack.reporting.charts import Chart, axis_of, quantity
from rlstack.reporting.document import FILES, LivePage, ReportPage, render, report, server_of
from rlstack.reporting.improvement import compare
from rlstack.training.environment import commit, record_environment
from rlstack.training.run import train
from tests.conftest import Command
from tests.refusals import refused
from tests.reporting.made_runs import HEADER, config, make_evaluation, make_run, score_rows
from tests.small_run import SMALL_RUN, composed

VOID = {"meta", "br", "wbr", "img", "link", "input", "hr"}


class Elements(HTMLParser):
    """Checks that every element is closed; collects the words, and addresses that a browser would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "poster", "action")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(" ".join(data.split()))


def words(page: ReportPage) -> str:
    return " ".join(word for word in Elements(render(page)).words if word)


def drawn(page: ReportPage) -> dict[str, Any]:
    """Returns what the page's script draws."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', render(page), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_a_run_on_a_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", config())
    make_evaluation(run / "evaluations/000000000200.json", [1.0, 2.0, 3.0, 94.0])
    page = report(run)
    assert [section.title for section in page.sections] == [
        *("Results", "Training", "Time", "Configuration", "Environment")
    ]
    text = words(page)
    assert "0.75 0.4 to 0.9 (95 %)" in text  # the last success and its interval
    assert "all 4 25 2.5" in text  # mean and interquartile mean of the returns
    assert "no differences from the defaults are shown, since they cannot be composed (env: no option" in text
    assert "torch 9.9" in text and "Machine and commit were not recorded: run." in text and page.notes == []


def test_a_run_with_yaml_files_of_the_user_says_how_to_show_its_differences(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", config(agent="mine"))
    command = ["-m", "rlstack.train", "--config-dir", "my conf", "agent=mine"]
    (run / "environment.json").write_text(json.dumps([{"command": command}]))
    assert f"rlstack report {run} --config-dir 'my conf' shows them" in words(report(run))


def test_long_names_leave_room_for_numbers(tmp_path: Path) -> None:
    run = make_run(tmp_path / "ppo_toy_seed0_20260102-030405", config())
    path = make_evaluation(run / "evaluations/final/evaluation.json", [1.0])
    content = json.loads(path.read_text())
    content["levels"] = [{**content["levels"][0], "level": level} for level in ("easy", "hard")]
    path.write_text(json.dumps(content))
    page = report(run)
    html, text = render(page), words(page)
    assert "<h1>ppo_<wbr>toy_<wbr>seed0_<wbr>20260102-<wbr>030405</h1>" in html and 'class="name">ppo' not in html
    assert "final easy 1 0.5" in text and "hard 1 0.5" in text and text.count(" final ") == 1
    make_run(tmp_path / "other", config(1))
    html = render(report(tmp_path))
    assert html.count('<td class="name">ppo_<wbr>toy') == 3  # of two tables of evaluations and of its time


def test_returns_of_other_rewards_are_told_apart(tmp_path: Path) -> None:
    header, rows = "frames,train/return,eval/return", ("1,2,3", "2,3,4")
    shown = "train/return and eval/return may differ in size and even in sign"
    assert words(report(make_run(tmp_path / "run", config(), rows, header))).count(shown) == 1
    assert shown not in words(report(make_run(tmp_path / "new", config(), rows, "frames,train/return,loss/actor")))


def test_every_chart_is_in_the_page_with_names_of_its_axes(tmp_path: Path) -> None:
    page = drawn(report(make_run(tmp_path / "run", config())))
    assert [chart["title"] for chart in page["charts"]] == ["eval/success", "eval/return", "train/return"]
    assert page["charts"][0]["up"] == "share of episodes" and page["charts"][0]["limits"] == [0, 1]
    (line,) = page["charts"][0]["lines"]
    assert page["xs"][line["x"]] == [100, 200] and line["y"] == [0.5, 0.75] and line["high"] == [0.8, 0.9]
    assert page["times"] == [[[100, 100, 200, 200], [10, 12, 20, 26], [9, 11, 18, 23]]]
    assert quantity("eval/path") == "m per episode"
    assert quantity("train/kills_blue") == "kills blue per episode" and quantity("loss/critic") == "critic loss"


def test_schedules_are_curves_of_their_own_with_logarithmic_learning_rates(tmp_path: Path) -> None:
    header = "frames,train/return,loss/actor,schedule/lr,schedule/clip,time/seconds,time/cpu_seconds"
    run = make_run(tmp_path / "run", config(), ("100,1,0.5,0.01,0.2,5,5", "200,2,0.4,0.005,0.1,9,9"), header)
    section = next(section for section in report(run).sections if section.title == "Schedules")
    panels = next(block for block in section.blocks if isinstance(block, Panels))
    assert [(chart.title, chart.log) for chart in panels.items] == [("schedule/lr", "y"), ("schedule/clip", "")]


def test_the_page_loads_nothing_and_escapes_everything(tmp_path: Path) -> None:
    bad = "<script>alert('&')</script>"
    settings = config(curriculum={"stages": [{"name": bad}, {"name": "b"}]})
    settings["agent"]["name"] = bad
    header = f"{HEADER},loss/{bad},curriculum/stage"
    rows = tuple(f"{frames},0,0.5,0,1,2,1,1,3,{frames // 200}" for frames in (100, 200))
    for seed, folder in enumerate(("one", "<b>two")):
        run = make_run(tmp_path / folder, {**settings, "seed": seed}, rows, header)
        make_evaluation(run / f"evaluations/{bad.replace('/', '')}/evaluation.json", [1.0], level=bad)
    text = render(report(tmp_path))
    assert "<script>alert" not in text and "<b>two" not in text and "&lt;script&gt;alert" in text
    loaded = Elements(text).loaded
    assert loaded and all(address.startswith("#") for address in loaded)
    assert not re.search(r"url\([^#]|@import|https?://", text)


@pytest.mark.slow
def test_groups_are_compared_by_what_differs(tmp_path: Path) -> None:
    for lr, score in ((0.001, 0.2), (0.01, 0.8), (1.0, 0.4)):
        for seed in range(3):
            make_run(tmp_path / f"lr{lr}/seed{seed}", config(seed, lr), score_rows(score + 0.01 * seed))
    page = report(tmp_path)
    assert page.subtitle == "9 runs in 3 groups"
    text = words(page)
    first, second, third = (
        text.index(f"{value} 3 {mean} {mean}") for value, mean in ((0.01, 0.81), (1, 0.41), (0.001, 0.21))
    )
    assert first < second < third
    assert "Highest mean lr=0.01 3 seeds, not separated" in text
    assert "p = 0.1; 3 against 3 seeds cannot reach p < 0.05; 4 against 4 can" in text and "95 %" not in text
    charts = {chart["title"]: chart for chart in drawn(page)["charts"]}
    means = [line for line in charts["eval/success"]["lines"] if line["run"] is None]
    assert sorted(line["y"][-1] for line in means) == pytest.approx([0.21, 0.41, 0.81])
    over = charts["eval/success over agent.lr"]  # one option needs no parallel coordinates
    assert over["log"] == "x" and over["lines"][0]["y"] == pytest.approx([0.21, 0.81, 0.41])
    assert "lr=0.01" in render(report(tmp_path, score="eval/return"))


def test_seeds_without_a_score_are_not_counted_among_those_of_a_mean(tmp_path: Path) -> None:
    make_run(tmp_path / "other", config(0, 0.2), score_rows(0.1))
    for seed in range(3):
        make_run(tmp_path / str(seed), config(seed), score_rows(0.2 + 0.2 * seed) if seed else ("100,1,,,,,5,5",))
    text = words(report(tmp_path))
    assert "0.1 2 of 3 0.5 0.5 0.4 0.6" in text and "Highest mean lr=0.1 2 seeds, not separated" in text


def test_a_copied_run_is_told(tmp_path: Path) -> None:
    for seed in (0, 1):
        make_run(tmp_path / f"seed{seed}", config(seed))
    make_run(tmp_path / "other", config(0, lr=0.2))
    assert report(tmp_path).notes == []
    shutil.copytree(tmp_path / "seed1", tmp_path / "seed1_backup")
    told = "has seed 1, as seed1 has: both are counted, though they are one seed"
    assert report(tmp_path).notes == [("seed1_backup", told)]
    sides = [[tmp_path / name for name in names] for names in (("seed0", "other"), ("seed1", "seed1_backup"))]
    assert [note for note in compare(*sides).notes if "counted" in note] == [f"{sides[1][1]}: {told}"]


def test_no_group_is_the_best_of_several_worlds(tmp_path: Path) -> None:
    for name in ("toy", "other"):
        make_run(tmp_path / name, config(env={"name": name}))
    text = words(report(tmp_path))
    assert "Worlds 2 their scores do not compare" in text and "Best" not in text


def test_many_groups_leave_grey_ones_in_the_background(tmp_path: Path) -> None:
    for index in range(10):
        make_run(tmp_path / str(index), config(lr=float(index)), score_rows(index / 10))
    groups = drawn(report(tmp_path))["groups"]
    assert [group["colour"] for group in groups if group["label"] in ("lr=0", "lr=1")] == [None, None]
    assert sorted(group["colour"] for group in groups if group["colour"] is not None) == list(range(8))


def test_two_options_are_parallel_coordinates(tmp_path: Path) -> None:
    for index, (lr, clip) in enumerate(((0.001, 0.1), (0.01, 0.1), (0.01, 0.2))):
        settings = config(lr=lr)
        settings["agent"]["clip"] = clip
        make_run(tmp_path / str(index), settings, score_rows(index / 10))
    (chart,) = (chart for chart in drawn(report(tmp_path))["charts"] if chart["kind"] == "parallel")
    assert [axis["label"] for axis in chart["axes"]] == ["agent.clip", "agent.lr", "eval/success"]
    assert chart["axes"][2]["values"] == chart["scores"] == [0.2, 0.1, 0.0]


def test_what_is_missing_is_told_first(tmp_path: Path) -> None:
    make_run(tmp_path / "half", config(total_frames=400))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/config.yaml").write_text("total_frames: 100\n")
    page = report(tmp_path)
    assert ("half", "incomplete: 200 of 400 frames (50%)") in page.notes
    assert any(name == "empty" and "cannot be read" in note for name, note in page.notes)
    assert "What is missing" in words(page)


def test_the_error_that_ended_a_run_is_told(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", config(total_frames=400))
    (run / "environment.json").write_text(json.dumps([{"ended": {"how": "failed", "why": "ValueError of a hook"}}]))
    assert ("run", "failed: ValueError of a hook") in report(run).notes


def test_films_are_inside_as_far_as_there_is_room(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", config())
    folder = make_evaluation(run / "evaluations/final/evaluation.json", [1.0]).parent
    (folder / "best_1.mp4").write_bytes(b"x" * 900)
    (folder / "episode.mp4").write_bytes(b"y" * 300)
    (folder / ".worst.123.partial.mp4").write_bytes(b"p")
    (folder / "trajectories.png").write_bytes(b"z" * 50)
    (folder / "elo.png").write_bytes(b"z")
    html = render(report(run, films_mb=0.001))
    assert html.count("data:video/mp4;base64,eHh4") == 1 and "Best episode" in html
    assert html.count("data:image/png") == 1 and "partial" not in html
    assert "evaluations/final/episode.mp4 was left out: 0.0 MB, above what films_mb=0.001 leaves" in html
    assert "data:" not in render(report(run, films_mb=0))


def test_a_league_is_shown_beside_its_runs_or_alone(tmp_path: Path) -> None:
    from rlstack.play.games import GameResult
    from rlstack.play.league import League
    from rlstack.play.ratings import Elo
    from tests.play.duel import NAME

    league = League.create(tmp_path, {"name": NAME}, Elo())
    with league.changing():
        league.join("ann", "random")
        league.join("bob", "random")
        league.rate([GameResult("ann", "bob", 2, 1, 9), GameResult("bob", "ann", 0, 1, 9)])
    text = words(report(tmp_path))
    assert "2 players, 2 games, elo" in text and "ann player" in text and "2-0-0" in text
    assert [chart["up"] for chart in drawn(report(tmp_path))["charts"]] == ["Elo rating"]  # also where Glicko-2 ranks
    (tmp_path / "league.json").write_text("{")
    make_run(tmp_path / "runs/a", config())
    assert any("league.json: changed or damaged" in note for _, note in report(tmp_path).notes)


def test_curriculum_stages_are_named_and_dated(tmp_path: Path) -> None:
    settings = config(curriculum={"stages": [{"name": "easy"}, {"name": "hard"}]})
    header = "frames,train/return,curriculum/stage"
    make_run(tmp_path / "run", settings, ("50,1,0", "100,1,1", "200,2,1"), header)
    assert "easy hard start 100" in words(report(tmp_path / "run"))
    make_run(tmp_path / "a run without", config(), ("100,1,", "200,2,"), header)
    assert "easy hard run start 100" in words(report(tmp_path))
    other = config(curriculum={"stages": [{"name": "near"}, {"name": "far"}]})
    make_run(tmp_path / "zz", other, ("50,1,0", "150,1,1", "200,2,1"), header)
    assert "run 0 1 run start 100 zz start 150" in words(report(tmp_path))  # stages of different curricula are numbers


def test_an_unknown_score_is_one_error(tmp_path: Path) -> None:
    told = "no run has logged 'eval/succes', did you mean 'eval/success'"
    refused(ConfigError, told, report, make_run(tmp_path / "run", config()), score="eval/succes")


def test_axes_of_options_are_linear_logarithmic_or_of_names() -> None:
    rates = axis_of("agent.lr_actor", [1e-4, 1e-3])
    assert rates["values"] == pytest.approx([-4, -3]) and rates["ticktext"] == ["0.0001", "0.001"]
    assert axis_of("agent.clip", [1, 2, 5])["values"] == [1, 2, 5]
    assert axis_of("a", ["x", None])["ticktext"] == ["x", "null"] and axis_of("a", [True, False])["values"] == [0, 1]
    powers = axis_of("a", [10.0 ** (-k / 3) for k in range(20)])
    assert powers["ticktext"] == ["1e-07", "1e-06", "1e-05", "0.0001", "0.001", "0.01", "0.1", "1"]
    assert powers["range"] == [-7, 0] and "tickvals" not in axis_of("a", [200 * k for k in range(8)])


def test_long_curves_of_many_runs_stay_small(tmp_path: Path) -> None:
    rows = tuple(f"{frames},{frames / 7}" for frames in range(1, 2001))
    for seed in range(20):
        make_run(tmp_path / str(seed), config(seed), rows, "frames,train/return")
    page = report(tmp_path)
    charts = [chart for section in page.sections for block in section.blocks for chart in getattr(block, "items", ())]
    assert all(isinstance(chart, Chart) for chart in charts)
    assert {len(line.y) for chart in charts for line in chart.lines} == {200}
    assert len(json.dumps(drawn(page))) < 100_000


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser")
def test_a_browser_draws_the_page(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(render(report(make_run(tmp_path / "run", config()))))
    command = ["chromium", "--headless", "--no-sandbox", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    command += ["--virtual-time-budget=20000", "--window-size=1280,2000", (tmp_path / "page.html").as_uri()]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200).stdout
    assert shown.count('class="main-svg"') >= 3 and "return per episode, sum of rewards" in shown


# -- ``rlstack report`` as a user types it, and what runs record for it ----------------------------------------------


def test_the_folder_may_be_the_first_word() -> None:
    rewrite = words_as("folder")
    assert rewrite(["runs/x", "films_mb=3"]) == ["folder='runs/x'", "films_mb=3"]
    assert rewrite(["films_mb=3", "it's"]) == ["films_mb=3", "folder='it\\'s'"]
    assert rewrite(["folder=x", "outputt=y"]) == ["folder=x", "outputt=y"]
    rewritten = words_as("first", "second")(["a,b", "json=true", "c", "d"])
    assert rewritten == ["first='a,b'", "json=true", "second='c'", "d"]


def test_a_page_is_written_beside_the_runs_or_where_it_is_wanted(rlstack_command: Command, tmp_path: Path) -> None:
    make_run(tmp_path / "my runs/lr=1,a", config(total_frames=300))
    done = rlstack_command("report", "my runs/lr=1,a")
    assert done.status == 0, done.err
    assert (tmp_path / "my runs/lr=1,a/report.html").read_text().startswith("<!DOCTYPE html>")
    assert "note: lr=1,a: incomplete: 200 of 300 frames (67%)" in done.out and "wrote my runs" in done.out
    done = rlstack_command("report", "my runs", "output=deep/page.html")
    assert done.status == 0 and [path.name for path in (tmp_path / "deep").iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "error: folder: runs is not a folder"),
        (["folder=."], "error: folder: . holds no runs"),
        (["folder=.", "output=page.pdf"], "error: output: page.pdf is not the name of a page"),
        (["folder=.", "films_mb=-1"], "error: films_mb: -1.0 is outside"),
    ],
)
def test_a_mistake_is_one_line(overrides: list[str], message: str, tmp_path: Path, rlstack_command: Command) -> None:
    assert rlstack_command("report", *overrides).refused().startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_every_start_of_a_run_is_recorded(tmp_path: Path) -> None:
    record_environment(tmp_path)
    record_environment(tmp_path)
    first, second = json.loads((tmp_path / "environment.json").read_text())
    assert first["instruction_set"].startswith(torch.backends.cpu.get_cpu_capability())
    assert first["versions"]["torch"] and first["cores"] >= 1 and second["started"].endswith("Z")
    (tmp_path / "environment.json").write_text("{")
    record_environment(tmp_path)
    assert len(json.loads((tmp_path / "environment.json").read_text())) == 1


def test_a_commit_is_told_with_whether_files_have_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert commit(tmp_path) is None
    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    assert commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("2")
    assert commit(tmp_path) == f"{git('rev-parse', 'HEAD')}+changes"


@pytest.mark.slow
def test_a_real_run_is_reported_whole(tmp_path: Path) -> None:
    options = [*SMALL_RUN, "total_frames=1000", "eval.every=500", "checkpoint.replay=false", "agent.buffer_size=2000"]
    train(composed(*options, f"run_dir={tmp_path / 'run'}"))
    page = report(tmp_path / "run")
    assert page.notes == []
    html = render(page)
    titles = {section.title for section in page.sections}
    assert {"Results", "Training", "Learner", "Time", "Configuration", "Environment"} <= titles
    assert "agent.candidates" in html and "Differences from rlstack train agent=acqn env=marinenav" in html
    assert "processor" in html and "eval/success by level" in html


# -- the server of a live page: what it shows, and what it refuses -----------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret.mp4").write_bytes(b"outside")
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def server(folder: Path) -> Iterator[ThreadingHTTPServer]:
    page = LivePage(folder, partial(report, folder, films_from=FILES))
    with server_of(page, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def asked(
    server: ThreadingHTTPServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content, answer.headers


def test_the_page_follows_the_runs(server: ThreadingHTTPServer, folder: Path) -> None:
    status, content, headers = asked(server, "/")
    assert status == 200 and b"nothing to show yet" in content and b"holds no runs" in content
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    run = make_run(folder / "run", config(total_frames=400))
    status, content, headers = asked(server, "/")
    assert b"train/return" in content and b'src="plotly.js"' in content and b'id="live"' in content
    assert asked(server, "/")[1] == content
    with (run / "metrics.csv").open("a") as file:
        file.write("300,9.0,,,,,30,27\n")
    status, newer, _ = asked(server, "/")
    assert status == 200 and b"75%" in newer


def test_plotly_and_films_are_served_whole_or_in_parts(server: ThreadingHTTPServer, folder: Path) -> None:
    run = make_run(folder / "a run", config())
    film = run / "evaluations/final/best 1.mp4"
    film.parent.mkdir(parents=True)
    film.write_bytes(bytes(range(100)))
    assert b'src="files/a%20run/evaluations/final/best%201.mp4#t=0.1"' in asked(server, "/")[1]
    address = "/files/a%20run/evaluations/final/best%201.mp4"
    status, content, headers = asked(server, address)
    assert (status, content, headers["Content-Type"]) == (200, film.read_bytes(), "video/mp4")
    status, content, headers = asked(server, address, Range="bytes=10-19")
    assert (status, list(content), headers["Content-Range"]) == (206, [*range(10, 20)], "bytes 10-19/100")
    assert asked(server, address, Range="bytes=90-")[1] == bytes(range(90, 100))
    assert asked(server, address, Range="bytes=100-")[0] == 416
    assert asked(server, address, "HEAD")[:2] == (200, b"")
    assert len(asked(server, "/plotly.js")[1]) > 1_000_000


@pytest.mark.parametrize(
    "path",
    [
        "/files/../secret.mp4",
        "/files/%2e%2e/secret.mp4",
        "/files/..%2Fsecret.mp4",
        "/files/link.mp4",
        "/files/linked/secret.mp4",
        "/files//etc/hostname.png",
        "/files/run/config.yaml",
        "/files/run/metrics.csv",
        "/files/%00.mp4",
        "/files/",
        "/run/x.mp4",
        "/secret.mp4",
        "//secret.mp4",
    ],
)
def test_only_films_below_the_folder_are_served(path: str, server: ThreadingHTTPServer, folder: Path) -> None:
    make_run(folder / "run", config())
    (folder / "link.mp4").symlink_to(folder.parent / "secret.mp4")
    (folder / "linked").symlink_to(folder.parent)
    status, content, _ = asked(server, path)
    assert status == 404 and b"outside" not in content


@pytest.mark.parametrize(
    ("host", "status"), [("localhost:9", 200), ("evil.example", 403), ("127.0.0.1.evil.example", 403), ("", 403)]
)
def test_only_names_of_this_machine_are_answered(host: str, status: int, server: ThreadingHTTPServer) -> None:
    assert asked(server, "/", Host=host)[0] == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(method: str, server: ThreadingHTTPServer) -> None:
    assert asked(server, "/", method)[0] == 501


def test_it_listens_on_this_machine_alone(server: ThreadingHTTPServer, folder: Path) -> None:
    assert server.server_address[0] == "127.0.0.1"
    page = LivePage(folder, partial(report, folder))
    refused(ConfigError, "^port: .* cannot be had .*port=0", server_of, page, server.server_port)
