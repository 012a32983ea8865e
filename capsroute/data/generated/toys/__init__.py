"""ToyNORB: toys built of simple solids and rendered as stereo pairs, a stand-in for smallNORB's photographs."""
