#!/usr/bin/env python3
"""The job that `dptrain init` writes, no key touched, beside scikit-learn's MLP behind a StandardScaler, on tables.

    sklearn_tables.py DPTRAIN FOLDER --rounds N [--only TABLE,...]

From a CSV file on: `convert --split 80/20`, `init`, training, `predict`; scikit-learn gets the same rows of the same files. Prints
a row of Markdown a table: accuracies, or R2. Both are computed with scikit-learn's metrics from the predictions, and compared
with what dptrain says of itself. Needs scikit-learn and pandas.
"""
import argparse
import json
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.compose import TransformedTargetRegressor
from sklearn.metrics import accuracy_score, r2_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

warnings.filterwarnings("ignore")  # of scikit-learn's: that a fit has not converged


def house_prices():
    """2000 sales around 250 000, whose logarithm is nearly a sum; a perfect model has an R2 of about 0.995."""
    draw = np.random.default_rng(7)
    n = 2000
    area, year, distance = draw.gamma(9, 14, n), draw.integers(1900, 2024, n), draw.exponential(9, n)
    rooms, town = np.round(area / 30 + draw.normal(0, 0.7, n)).clip(1), draw.choice(["north", "south", "west"], n, p=[0.5, 0.3, 0.2])
    price = 11.55 + 0.0052 * area + 0.03 * rooms + 0.002 * (year - 1960) - 0.012 * distance
    price = np.exp(price + np.select([town == "south", town == "west"], [0.12, -0.08]) + draw.normal(0, 0.025, n))
    return pd.DataFrame({"area": area.round(1), "rooms": rooms, "year": year, "distance": distance.round(2), "town": town, "target": price.round(-2)})


def bundled(load):
    return lambda: load(as_frame=True).frame


# Name: the table, what `convert` is told beside the label, whether it is a regression.
TABLES = {
    "wine": (bundled(datasets.load_wine), [], False),
    "breast cancer": (bundled(datasets.load_breast_cancer), [], False),
    "digits": (bundled(datasets.load_digits), [], False),
    "diabetes": (bundled(datasets.load_diabetes), [], True),
    "house prices": (house_prices, ["--categories", "town"], True),
}


def run(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def read(folder, part):
    with h5py.File(folder / f"{part}-00000-of-00001.h5") as shard:
        return shard["images"][()].astype(np.float64), np.squeeze(shard["labels"][()])


def dptrain(binary, folder, csv, words, regression, seed):
    """The test score, and the seconds of all four commands."""
    shutil.rmtree(folder, ignore_errors=True)
    begin = time.monotonic()
    run(binary, "convert", "csv", csv, "--label", "target", "--split", "80/20", "--seed", seed, "--output", f"{folder}/", *words,
        "--regression" if regression else "--stratify")
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
    events = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    told = [e["accuracy"] for e in events if e["event"] == "eval" and e["split"] == "test"][-1]
    assert abs(told - score) < 1e-6, (told, score)
    return score, seconds


def peers(folder, regression, seed):
    """scikit-learn's scores on the same rows: as it comes, and for regression with scaled targets, too."""
    (x, y), (x_test, y_test) = read(folder, "train"), read(folder, "test")
    if not regression:
        model = make_pipeline(StandardScaler(), MLPClassifier(max_iter=1000, random_state=seed)).fit(x, y)
        return {"MLPClassifier": accuracy_score(y_test, model.predict(x_test))}
    mlp = make_pipeline(StandardScaler(), MLPRegressor(max_iter=1000, random_state=seed))
    scaled = TransformedTargetRegressor(mlp, transformer=StandardScaler())
    return {"MLPRegressor": r2_score(y_test, mlp.fit(x, y).predict(x_test)),
            "MLPRegressor, targets scaled": r2_score(y_test, scaled.fit(x, y).predict(x_test))}


def shown(scores):
    return f"{np.mean(scores):.4f} ± {np.std(scores, ddof=1) / np.sqrt(len(scores)):.4f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(TABLES))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    print("| table | dptrain init | seconds | scikit-learn | which | worse by more than a standard error |\n|---|---|---|---|---|---|")
    for name in args.only:
        table, words, regression = TABLES[name]
        csv, folder = args.folder / f"{name.replace(' ', '-')}.csv", args.folder / name.replace(" ", "-")
        table().to_csv(csv, index=False)
        mine, seconds, others = [], [], {}
        for seed in range(args.rounds):
            score, taken = dptrain(args.binary, folder, csv, words, regression, seed)
            mine.append(score)
            seconds.append(taken)
            for peer, theirs in peers(folder, regression, seed).items():
                others.setdefault(peer, []).append(theirs)
        print(f"{name}: {mine} {others}", file=sys.stderr)
        which = max(others, key=lambda peer: np.mean(others[peer]))
        best = others[which]
        error = np.std(best, ddof=1) / np.sqrt(len(best))
        verdict = "yes" if np.mean(mine) < np.mean(best) - error else "no"
        print(f"| {name}{', R2' if regression else ''} | {shown(mine)} | {np.median(seconds):.1f} | {shown(best)} | {which} | {verdict} |", flush=True)


if __name__ == "__main__":
    main()
