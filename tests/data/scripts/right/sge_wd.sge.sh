#!/bin/bash -l
#$ -S /bin/bash
#$ -wd /home/user/run
#$ -pe sharedmem 4
#$ -l h_rt=12:00:00
python train.py --threads 4
