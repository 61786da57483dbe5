import argparse

import yaml

parser = argparse.ArgumentParser()
parser.add_argument("--config")
args = parser.parse_args()
with open(args.config) as f:
    for experiment in yaml.safe_load(f):
        print(experiment)
