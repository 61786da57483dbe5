#!/bin/bash
#$ -cwd
#$ -N mutate
#$ -t 1-8
#$ -l h_rt=01:00:00
#$ -l mem_free=1G
#$ -o tmp/$JOB_ID.$TASK_ID.o
#$ -j y
module load CBI miniforge3
conda activate imp
python mutate.py --state $TASK_ID
