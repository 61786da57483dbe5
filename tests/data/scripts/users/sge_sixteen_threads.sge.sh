#!/bin/bash -l
#$ -cwd
#$ -N als
#$ -pe smp 8
#$ -l h_rt=12:00:00
#$ -l h_vmem=4G
export OMP_NUM_THREADS=16
module load python/3.10
python als.py --factors 64
