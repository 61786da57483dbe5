#!/bin/bash
#$ -N merge_ind
#$ -m beas
#$ -pe smp 10
#$ -l h_vmem=100G
#$ -l h_rt=48:00:00
#$ -cwd
#$ -S /bin/bash
source ~/venv/bin/activate
python merge.py --threads 10
