#!/bin/bash -l

#$ -l h_rt=06:00:00
#$ -N gcc_param
#$ -P caad
#$ -pe omp 8

module load python3
python3 train.py
