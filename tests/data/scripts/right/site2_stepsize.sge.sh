#!/bin/bash
#$ -S /bin/bash
#$ -V -cwd
#$ -N chunks
#$ -t 1-1000:50
#$ -tc 10
#$ -l h_rt=02:00:00,h_vmem=6G
#$ -o logs/
#$ -e logs/
first=$SGE_TASK_ID
last=$((SGE_TASK_ID + SGE_TASK_STEPSIZE - 1))
for i in $(seq $first $last); do
    python3 one.py --item $i
done
