#!/bin/bash -l
#$ -N deep
#$ -cwd
#$ -l h_rt=24
#$ -l mem_per_core=8G
#$ -pe omp 4
#$ -l gpus=1
module load miniconda
conda activate dl
python deep.py --device cuda
