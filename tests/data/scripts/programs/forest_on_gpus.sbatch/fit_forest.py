import argparse

import pandas as pd
from sklearn.ensemble import RandomForestClassifier

parser = argparse.ArgumentParser()
parser.add_argument("--input")
args = parser.parse_args()

df = pd.read_parquet(args.input)
clf = RandomForestClassifier(n_estimators=800, n_jobs=16)
clf.fit(df.drop(columns="label"), df["label"])
