#!/bin/bash
#$ -cwd
#$ -l h_rt=4:00:00
#$ -l h_vmem=8G
source ~/venv/bin/activate
export OMP_NUM_THREADS=8
python train.py
