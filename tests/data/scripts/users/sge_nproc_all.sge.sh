#!/bin/bash
#$ -S /bin/bash
#$ -cwd
#$ -j yes
#$ -pe smp 4
#$ -q gpu.q
#$ -l gpu=1
#$ -l h_rt=24:00:00
#$ -l mem_free=8G
TOTAL_CPUS=$(nproc --all)
source ~/venv/bin/activate
python finetune.py --workers $TOTAL_CPUS --stage finetune
