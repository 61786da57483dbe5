#!/bin/bash
#$ -S /bin/bash
#$ -cwd
#$ -pe smp 4
#$ -l h_rt=24:00:00
#$ -l h_vmem=8G
source ~/venv/bin/activate
for s in 1 2 3 4; do
  OMP_NUM_THREADS=1 python train.py --seed $s > s$s.log &
done
