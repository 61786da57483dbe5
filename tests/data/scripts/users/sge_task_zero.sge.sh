#!/bin/bash
#$ -cwd
#$ -N omniglot
#$ -t 0-9
#$ -l h_rt=8:0:0
#$ -l tmem=8G
#$ -l gpu=true
#$ -o logs/$JOB_NAME.$TASK_ID.out
source $HOME/project/env/bin/activate
python3 main.py --seed $SGE_TASK_ID --device cuda
