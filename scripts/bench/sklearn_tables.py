#!/usr/bin/env python3
"""The job that `dptrain init` writes, no key touched, beside scikit-learn's models and an MLP of Keras, on tables (tables.py).

    sklearn_tables.py DPTRAIN FOLDER --rounds N [--only TABLE,...]

From a CSV file on: `convert --split 80/20`, `init`, training, `predict`; the others get the same rows of the same files: an MLP with early
stopping, gradient boosting and a linear model of scikit-learn's, and where Keras is here one of 256-128 that stops early. Prints a row of
Markdown a table: accuracies, or R2. All are computed with scikit-learn's metrics from the predictions, and compared with what dptrain
says of itself. Needs scikit-learn and pandas.
"""
import argparse
import importlib.util
import os
import shutil
import sys
import time
import warnings
from pathlib import Path

import h5py
import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import accuracy_score, r2_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from first_jobs import error_of, events_of, run, shown, tested
from tables import TABLES, table

warnings.filterwarnings("ignore")  # of scikit-learn's: that a fit has not converged


def read(folder, part):
    with h5py.File(folder / f"{part}-00000-of-00001.h5") as shard:
        return shard["images"][()].astype(np.float64), np.squeeze(shard["labels"][()])


def dptrain(binary, folder, csv, words, regression, seed):
    """The test score, and the seconds of all four commands."""
    shutil.rmtree(folder, ignore_errors=True)
    begin = time.monotonic()
    run(binary, "convert", "csv", csv, "--label", "target", "--split", "80/20", "--seed", seed, "--output", f"{folder}/", *words)
    run(binary, "init", folder, "--output", folder / "job.yaml")
    run(binary, folder / "job.yaml", "--output", folder / "run", "--quiet")
    run(binary, "predict", folder / "job.yaml", "--checkpoint", folder / "run", "--input", folder / "test-00000-of-00001.h5",
        "--out", folder / "predicted.h5")
    seconds = time.monotonic() - begin
    truth = read(folder, "test")[1]
    with h5py.File(folder / "predicted.h5") as predicted:
        if regression:
            return r2_score(truth, np.squeeze(predicted["predictions"][()])), seconds
        score = accuracy_score(truth, predicted["labels"][()])
    told = tested(events_of(folder / "run"))
    assert abs(told - score) < 1e-6, (told, score)
    return score, seconds


def keras_mlp(x, y, x_test, regression, seed):
    """256-128 as a user of Keras would write it: Adam, a tenth held out, the best weights after 20 epochs that are not better."""
    os.environ.setdefault("KERAS_BACKEND", "jax")  # which bench.sh installs
    import keras
    keras.utils.set_random_seed(seed)
    scaler = StandardScaler().fit(x)
    mean, std = (y.mean(), y.std()) if regression else (0, 1)
    order = np.random.default_rng(seed).permutation(len(x))
    layers = keras.layers
    model = keras.Sequential([layers.Input((x.shape[1],)), layers.Dense(256, activation="relu"), layers.Dense(128, activation="relu"),
                              layers.Dense(1 if regression else int(y.max()) + 1)])
    model.compile("adam", "mse" if regression else keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(scaler.transform(x)[order].astype("f4"), ((y - mean) / std)[order], epochs=200, batch_size=32 if len(x) < 20000 else 128,
              validation_split=0.1, verbose=0,
              callbacks=[keras.callbacks.EarlyStopping(patience=20 if len(x) < 20000 else 10, restore_best_weights=True)])
    said = model.predict(scaler.transform(x_test).astype("f4"), batch_size=4096, verbose=0)
    return said[:, 0] * std + mean if regression else said.argmax(1)


def peers(folder, regression, seed):
    """{name: (score, seconds)} on the same rows; targets are scaled for the MLPs."""
    (x, y), (x_test, y_test) = read(folder, "train"), read(folder, "test")
    scaled = lambda model: make_pipeline(StandardScaler(), model)
    if regression:
        mlp = MLPRegressor(max_iter=1000, early_stopping=True, random_state=seed)
        models = {"MLP": TransformedTargetRegressor(scaled(mlp), transformer=StandardScaler()),
                  "HistGradientBoosting": HistGradientBoostingRegressor(random_state=seed),
                  "linear": scaled(RidgeCV(np.logspace(-3, 3, 13)))}
    else:
        models = {"MLP": scaled(MLPClassifier(max_iter=1000, early_stopping=True, random_state=seed)),
                  "HistGradientBoosting": HistGradientBoostingClassifier(random_state=seed),
                  "linear": scaled(LogisticRegression(max_iter=2000))}
    says = {name: lambda model=model: model.fit(x, y).predict(x_test) for name, model in models.items()}
    if importlib.util.find_spec("keras") is not None:
        says["Keras"] = lambda: keras_mlp(x, y, x_test, regression, seed)
    result = {}
    for name, say in says.items():
        begin = time.monotonic()
        score = (r2_score if regression else accuracy_score)(y_test, say())
        result[name] = score, time.monotonic() - begin
    return result


def below(mine, theirs):
    """Whether the mean is less by more than the larger of the two standard errors."""
    return np.mean(mine) < np.mean(theirs) - max(error_of(mine), error_of(theirs))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(TABLES))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    print("| table | rows | dptrain | s | best MLP | which | s | linear | HistGradientBoosting | less than the MLP, the linear one |\n" + "|---" * 10 + "|")
    within = []
    for name in args.only:
        csv, folder = args.folder / f"{name}.csv", args.folder / name
        made = table(name, csv)
        if made is None:
            print(f"{name}: its package is not here", file=sys.stderr)
            continue
        words, regression, rows = made
        mine, seconds, others = [], [], {}
        for seed in range(args.rounds):
            score, taken = dptrain(args.binary, folder, csv, words, regression, seed)
            mine.append(score)
            seconds.append(taken)
            for peer, theirs in peers(folder, regression, seed).items():
                others.setdefault(peer, []).append(theirs)
        print(f"{name}: {mine} {seconds} {others}", file=sys.stderr)
        scores = {peer: [score for score, _ in theirs] for peer, theirs in others.items()}
        which = max((peer for peer in ("MLP", "Keras") if peer in scores), key=lambda peer: np.mean(scores[peer]))
        less = [below(mine, scores[peer]) for peer in (which, "linear")]
        within.append(less)
        print(f"| {name}{', R2' if regression else ''} | {rows} | {shown(mine)} | {np.median(seconds):.1f} | {shown(scores[which])} | "
              f"{'scikit-learn' if which == 'MLP' else which} | {np.median([taken for _, taken in others[which]]):.1f} | {shown(scores['linear'])} | "
              f"{shown(scores['HistGradientBoosting'])} | {', '.join('yes' if one else 'no' for one in less)} |", flush=True)
        shutil.rmtree(folder)
    print(f"\n{len(within)} tables: by more than a standard error below the best MLP on {sum(less[0] for less in within)}, "
          f"below the linear model on {sum(less[1] for less in within)}")


if __name__ == "__main__":
    main()
