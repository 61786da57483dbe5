#!/bin/bash
#$ -N pre_cfr
#$ -cwd
#$ -m bea
# #$ -l gpu=1
#$ -pe smp 4
#$ -l h_vmem=8G
#$ -l h_rt=10:00:00
source /speed-scratch/venv/bin/activate
python buckets.py --device cuda:0
