#!/usr/bin/env python3
"""Makes golden_table.csv, as pandas writes it where commas are decimal marks, and golden_table.json, what pandas and scikit-learn
make of it: numbers that are missing become medians or means, words become columns of 0 and 1, and all are standardised.

    python3 data/tests/make_golden_table.py     # needs pandas and scikit-learn
"""
import json
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

HERE, ROWS = Path(__file__).parent, 60
NUMBERS, WORDS = ["Größe, m", "年"], ["città"]
draw = np.random.default_rng(20)
table = pd.DataFrame({
    "Größe, m": draw.normal(1.75, 0.1, ROWS).round(3),
    "città": draw.choice(["Köln", "São Paulo", 'Łódź "2"', "Aix; Provence"], ROWS),
    "年": draw.integers(18, 80, ROWS).astype(float),
    "note": [f'line {i}\nand "more"; {i / 3:.2f}' for i in range(ROWS)],
    "Preis, EUR": draw.normal(250000, 40000, ROWS).round(2),
})
for column, gap in (("Größe, m", 7), ("年", 11), ("città", 13)):
    table.loc[::gap, column] = np.nan
path = HERE / "golden_table.csv"
table.to_csv(path, sep=";", decimal=",", encoding="utf-8-sig", na_rep="NA", lineterminator="\r\n")

read = pd.read_csv(path, sep=";", decimal=",", index_col=0)
golden = {"names": [str(i) for i in read.index], "target": read["Preis, EUR"].tolist()}
for how in ("median", "mean"):
    numbers = SimpleImputer(strategy=how)
    words = OneHotEncoder(handle_unknown="ignore", categories=[sorted(read[WORDS[0]].dropna().unique())], sparse_output=False)
    # In the order of the file.
    columns = ColumnTransformer([("a", numbers, NUMBERS[:1]), ("b", words, WORDS), ("c", SimpleImputer(strategy=how), NUMBERS[1:])])
    golden[how] = make_pipeline(columns, StandardScaler()).fit_transform(read).tolist()
(HERE / "golden_table.json").write_text(json.dumps(golden, ensure_ascii=False) + "\n", encoding="utf-8")
