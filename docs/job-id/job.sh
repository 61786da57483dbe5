#!/bin/bash
#SBATCH --job-name=ncf
#SBATCH --cpus-per-task=2
#SBATCH --mem=3G
#SBATCH --time=00:30:00
export OMP_NUM_THREADS=1
python train.py 11
