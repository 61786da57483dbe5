#!/bin/bash
#$ -S /bin/bash
#$ -cwd
#$ -o logs/$JOB_ID.$TASK_ID.o
#$ -j y
#$ -l h_rt=01:00:00
#$ -l mem_free=1G
#$ -N mutate
#$ -t 1-80
#$ -tc 20

module load CBI miniforge3
source ~/venv/bin/activate
python mutate.py --index $SGE_TASK_ID
