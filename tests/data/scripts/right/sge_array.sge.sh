#!/bin/bash -l
#$ -cwd
#$ -t 1-10
#$ -tc 4
#$ -l h_rt=2:00:00
#$ -l h_vmem=4G
python train.py --fold $SGE_TASK_ID
