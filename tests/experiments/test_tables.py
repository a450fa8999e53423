"""The tables of the experiments' pages agree with their result files."""

from __future__ import annotations

from experiments import tables
from tests.refusals import refused


def test_every_table_is_that_of_its_result_file() -> None:
    assert tables.main(["--check"]) == 0


def test_every_known_table_stands_on_one_page_once() -> None:
    pages = "".join(page.read_text() for page in tables.PAGES)
    assert sorted(name for name, _ in tables.MARKED.findall(pages)) == sorted(tables.TABLES)


def test_a_stale_table_is_named_and_rewritten(tmp_path, monkeypatch, capsys) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: soak -->\n| typed by hand |\n<!-- end -->\nafter\n")
    monkeypatch.setattr(tables, "PAGES", [page])
    assert tables.main(["--check"]) == 1 and "soak" in capsys.readouterr().out
    assert tables.main([]) == 0
    lines = page.read_text().splitlines()
    assert lines[0] == "before" and lines[-1] == "after" and lines[2].startswith("| world | frames |")


def test_a_table_nobody_makes_is_refused() -> None:
    refused(KeyError, "nothing", tables.rewritten, "<!-- table: nothing -->\n<!-- end -->")
