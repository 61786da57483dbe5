#!/bin/bash -l
#$ -N train
#$ -cwd
#$ -pe smp 8
#$ -l h_rt=12:00:00
#$ -l h_vmem=2G
#$ -j y
export OMP_NUM_THREADS=$NSLOTS
python train.py
