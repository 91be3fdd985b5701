"""The tables on which the job that `dptrain init` writes is judged: made up here, scikit-learn's own, those of the book ISLP (a package
of PyPI, of which the files alone are wanted: pip install --no-deps ISLP) and of R's packages modeldata, mlbench and ggplot2 (Debian's
r-cran-*, read by Rscript). Tables whose package is not installed are left out.
"""
import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import datasets

MOST_VALUES = 100  # a column of more words is no category
LEAST_SAMPLES = 10  # of a class


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


def flowers():
    return pd.read_csv("data/flowers.csv")


def bundled(name):
    return lambda: getattr(datasets, f"load_{name}")(as_frame=True).frame


def islp(name):
    def load():
        package = importlib.util.find_spec("ISLP")
        return None if package is None else pd.read_csv(Path(package.origin).parent / f"data/{name}.csv")
    return load


def r(package, name):
    def load():
        if shutil.which("Rscript") is None:
            return None
        with tempfile.NamedTemporaryFile(suffix=".csv") as file:
            script = f'data(list="{name}", package="{package}"); write.csv({name}, "{file.name}", row.names=FALSE)'
            return pd.read_csv(file.name) if subprocess.run(["Rscript", "-e", script], capture_output=True).returncode == 0 else None
    return load


# Name: where it is from, its label, whether that is an amount, columns that would give it away or name a row.
TABLES = {
    "Bikeshare": (islp("Bikeshare"), "bikers", True, ["casual", "registered"]), "Carseats": (islp("Carseats"), "Sales", True, []),
    "College": (islp("College"), "Outstate", True, []), "Hitters": (islp("Hitters"), "Salary", True, []),
    "Wage": (islp("Wage"), "wage", True, ["logwage", "region"]), "Auto": (islp("Auto"), "mpg", True, ["name"]),
    "Credit": (islp("Credit"), "Balance", True, ["ID"]), "OJ": (islp("OJ"), "Purchase", False, []),
    "Default": (islp("Default"), "default", False, []), "Caravan": (islp("Caravan"), "Purchase", False, []),
    "ames": (r("modeldata", "ames"), "Sale_Price", True, []), "Sacramento": (r("modeldata", "Sacramento"), "price", True, ["zip"]),
    "mlc_churn": (r("modeldata", "mlc_churn"), "churn", False, []), "wa_churn": (r("modeldata", "wa_churn"), "churn", False, []),
    "attrition": (r("modeldata", "attrition"), "Attrition", False, []), "cells": (r("modeldata", "cells"), "class", False, ["case"]),
    "concrete": (r("modeldata", "concrete"), "compressive_strength", True, []), "credit_data": (r("modeldata", "credit_data"), "Status", False, []),
    "car_prices": (r("modeldata", "car_prices"), "Price", True, []), "hpc_data": (r("modeldata", "hpc_data"), "class", False, []),
    "stackoverflow": (r("modeldata", "stackoverflow"), "Remote", False, []), "two_class_dat": (r("modeldata", "two_class_dat"), "Class", False, []),
    "penguins": (r("modeldata", "penguins"), "species", False, []), "BostonHousing": (r("mlbench", "BostonHousing"), "medv", True, []),
    "LetterRecognition": (r("mlbench", "LetterRecognition"), "lettr", False, []), "Satellite": (r("mlbench", "Satellite"), "classes", False, []),
    "Shuttle": (r("mlbench", "Shuttle"), "Class", False, []), "Sonar": (r("mlbench", "Sonar"), "Class", False, []),
    "Vehicle": (r("mlbench", "Vehicle"), "Class", False, []), "Vowel": (r("mlbench", "Vowel"), "Class", False, []),
    "Soybean": (r("mlbench", "Soybean"), "Class", False, []), "DNA": (r("mlbench", "DNA"), "Class", False, []),
    "PimaIndiansDiabetes": (r("mlbench", "PimaIndiansDiabetes"), "diabetes", False, []), "diamonds": (r("ggplot2", "diamonds"), "price", True, []),
    "wine": (bundled("wine"), "target", False, []), "breast_cancer": (bundled("breast_cancer"), "target", False, []),
    "digits": (bundled("digits"), "target", False, []), "diabetes": (bundled("diabetes"), "target", True, []),
    "house_prices": (house_prices, "target", True, []), "flowers": (flowers, "species", False, []), "patients": (patients, "target", False, []),
    "houses": (houses, "target", True, []),
}


def table(name, csv):
    """Writes it, its label as `target`; the words that `convert csv` wants with it, whether it is a regression, its rows. None: not here."""
    load, label, regression, drop = TABLES[name]
    frame = load()
    if frame is None:
        return None
    words = frame.select_dtypes(exclude=["number", "bool"]).columns.drop(label, errors="ignore")
    many = [column for column in words if frame[column].nunique() > MOST_VALUES]
    frame = frame.drop(columns=[*drop, *many, *(c for c in frame.columns if c.startswith("Unnamed"))], errors="ignore")
    frame = frame.dropna(subset=[label]).rename(columns={label: "target"})
    categories = [column for column in words if column in frame.columns]
    frame[categories] = frame[categories].fillna("none given")
    if not regression:
        frame["target"] = "class " + frame["target"].astype(str)
        frame = frame[frame["target"].map(frame["target"].value_counts()) >= LEAST_SAMPLES]
    frame.to_csv(csv, index=False)
    told = ["--regression"] if regression else ["--stratify"]
    if categories:
        told += ["--categories", ",".join(f'"{c}"' if "," in c else c for c in categories)]
    if frame.drop(columns=categories).isna().any().any():
        told += ["--impute", "median"]
    return told, regression, len(frame)
