#!/bin/bash -l
#$ -P ec523
#$ -l gpus=1
#$ -l gpu_c=7.0
#$ -pe omp 8
#$ -l h_rt=24:00:00
#$ -o logs/train_$JOB_ID.log
#$ -j y
#$ -cwd
set -e
module load miniconda
conda activate spring-2025-pyt
cd /projectnb/ec523/team/ResShift
export OMP_NUM_THREADS=$NSLOTS
python main.py --cfg_path configs/realsr.yaml --save_dir logs/data_50k
