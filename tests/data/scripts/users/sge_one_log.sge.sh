#!/bin/bash
#$ -cwd
#$ -j y
#$ -S /bin/bash
#$ -N cbm
#$ -o logs/cbm.log
#$ -q gpu.q
#$ -l gpu=1
#$ -l h_rt=12:00:00
#$ -t 1-12
source ~/venv/bin/activate
python detect.py --attr $SGE_TASK_ID --device cuda
