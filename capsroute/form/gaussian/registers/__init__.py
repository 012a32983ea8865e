"""Steps of EM and Heinsen routing over shared transforms that make votes in registers: large layers of small poses."""
