#!/usr/bin/env python3
"""The job that `dptrain init` writes, no key touched, beside the best of scikit-learn's models, on tables.

    sklearn_tables.py DPTRAIN FOLDER --rounds N [--only TABLE,...]

From a CSV file on: `convert --split 80/20`, `init`, training, `predict`; scikit-learn gets the same rows of the same files: an MLP as it
comes and one with early stopping, gradient boosting, and a linear model. Prints a row of Markdown a table: accuracies, or R2. Both are
computed with scikit-learn's metrics from the predictions, and compared with what dptrain says of itself. Needs scikit-learn and pandas.
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
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
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


def patients():
    """2000 people, of whom one in twenty is ill and has larger numbers: as the tutorial's."""
    draw = np.random.default_rng(6)
    ill = draw.random(2000) < 0.05
    return pd.DataFrame({"age": draw.normal(45 + 8 * ill, 12).round(), "pulse": draw.normal(70 + 9 * ill, 10).round(),
                         "sugar": draw.normal(5 + 1.3 * ill, 0.8).round(1), "target": np.where(ill, "ill", "healthy")})


def houses():
    """400 prices that are linear but for 5 000 of noise: as the tutorial's."""
    draw = np.random.default_rng(4)
    area, rooms, town = draw.integers(40, 201, 400), draw.integers(1, 7, 400), draw.choice(["Ashford", "Bywater"], 400)
    price = 1500 * area + 8000 * rooms + 60000 * (town == "Bywater") + draw.normal(0, 5000, 400)
    return pd.DataFrame({"area": area, "rooms": rooms, "town": town, "target": price.round()})


def bundled(load):
    return lambda: load(as_frame=True).frame


def flowers():
    return pd.read_csv("data/flowers.csv").rename(columns={"species": "target"})


# Name: the table, what `convert` is told beside the label, whether it is a regression.
TABLES = {
    "wine": (bundled(datasets.load_wine), [], False),
    "breast cancer": (bundled(datasets.load_breast_cancer), [], False),
    "digits": (bundled(datasets.load_digits), [], False),
    "diabetes": (bundled(datasets.load_diabetes), [], True),
    "house prices": (house_prices, ["--categories", "town"], True),
    "flowers": (flowers, [], False),
    "patients": (patients, [], False),
    "houses": (houses, ["--categories", "town"], True),
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
    told = [e["accuracy"] for e in events if e["event"] in ("eval", "best") and e["split"] == "test"][-1]
    assert abs(told - score) < 1e-6, (told, score)
    return score, seconds


def peers(folder, regression, seed):
    """scikit-learn's scores on the same rows; MLPs of regression also with scaled targets."""
    (x, y), (x_test, y_test) = read(folder, "train"), read(folder, "test")
    scaled = lambda model: make_pipeline(StandardScaler(), model)
    if not regression:
        models = {"MLP": scaled(MLPClassifier(max_iter=1000, random_state=seed)),
                  "MLP, early stopping": scaled(MLPClassifier(max_iter=1000, early_stopping=True, random_state=seed)),
                  "HistGradientBoosting": HistGradientBoostingClassifier(random_state=seed),
                  "LogisticRegression": scaled(LogisticRegression(max_iter=10000))}
        return {name: accuracy_score(y_test, model.fit(x, y).predict(x_test)) for name, model in models.items()}
    mlp = MLPRegressor(max_iter=1000, random_state=seed)
    early = MLPRegressor(max_iter=1000, early_stopping=True, random_state=seed)
    models = {"MLP": scaled(mlp), "MLP, targets scaled": TransformedTargetRegressor(scaled(mlp), transformer=StandardScaler()),
              "MLP, early stopping, targets scaled": TransformedTargetRegressor(scaled(early), transformer=StandardScaler()),
              "HistGradientBoosting": HistGradientBoostingRegressor(random_state=seed),
              "RidgeCV": scaled(RidgeCV(np.logspace(-3, 3, 13)))}
    return {name: r2_score(y_test, model.fit(x, y).predict(x_test)) for name, model in models.items()}


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
