from pathlib import Path

from mlirstitch.driver.demo import main


def test_the_demo_compiles_runs_and_tells_where_the_ptx_lies(tmp_path, capsys):
    assert main([str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    (ptx,) = [line.split()[1] for line in out.splitlines() if line.startswith("PTX:")]
    assert ".visible .entry" in Path(ptx).read_text()
    kernels = next(line for line in out.splitlines() if line.startswith("kernels of memory-bound ops"))
    before, after = map(int, kernels.split()[-2:])
    assert after < before
    assert "Largest error against eager in float64" in out


def test_a_second_run_replaces_the_first(tmp_path):
    assert main([str(tmp_path)]) == 0
    assert main([str(tmp_path)]) == 0


def test_an_output_folder_that_cannot_be_written_is_an_error(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    assert main([str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.startswith("error: ")
