"""Curves of several runs, side by side, from what they wrote down."""

import pytest
import torch

from capsroute.analysis import draw_training_curves, training_curves

HEADER = "epoch,train_loss,train_accuracy,validation_accuracy"


def run(folder, *lines, header=HEADER):
    folder.mkdir()
    (folder / "metrics.csv").write_text("\n".join([header, *lines]) + "\n")
    return folder


def test_runs_of_different_length_share_their_epochs(tmp_path):
    runs = {
        "one iteration": run(tmp_path / "a", "1,0.5,0.6,0.7", "2,0.4,0.7,0.75", "3,0.3,0.8,0.8"),
        "two iterations": run(tmp_path / "b", "1,0.6,0.5,0.65", "2,0.2,0.9,0.85"),
    }
    curves = training_curves(runs)
    assert curves.runs == ("one iteration", "two iterations")
    assert curves.epochs.tolist() == [1, 2, 3]
    assert curves.validation_accuracy[0].tolist() == [0.7, 0.75, 0.8]
    assert curves.train_loss[1, :2].tolist() == [0.6, 0.2]
    assert curves.train_loss[1, 2].isnan()
    assert curves.validation_loss.isnan().all()  # not measured


@pytest.mark.parametrize("names", [["one"], ["one", "two"]])
def test_one_run_shows_both_parts_and_several_only_validation(tmp_path, names):
    runs = {name: run(tmp_path / name, "1,0.5,0.6,0.7", "2,0.4,0.7,0.75") for name in names}
    loss, accuracy = draw_training_curves(training_curves(runs)).axes
    parts = [line.get_label() for line in accuracy.lines]
    assert parts == (["training", "validation"] if len(names) == 1 else names)
    expected = [70, 75] if len(names) > 1 else [60, 70]
    torch.testing.assert_close(torch.tensor(accuracy.lines[0].get_ydata()), torch.tensor(expected).double())
    assert len(loss.lines) == len(names)
    assert accuracy.get_ylabel() == ("accuracy (%)" if len(names) == 1 else "validation accuracy (%)")


def test_runs_without_validation_show_training_and_say_so(tmp_path):
    header = "epoch,train_loss,train_accuracy"
    runs = {name: run(tmp_path / name, "1,0.5,0.6", header=header) for name in ("one", "two")}
    loss, accuracy = draw_training_curves(training_curves(runs)).axes
    assert accuracy.get_ylabel() == "training accuracy (%)"
    assert loss.get_ylabel() == "training loss"
    assert float(accuracy.lines[0].get_ydata()[0]) == 60


def test_a_folder_without_metrics_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"expected run folders with a metrics\.csv, empty given"):
        training_curves({"empty": tmp_path})
