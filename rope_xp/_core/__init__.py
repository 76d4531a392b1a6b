"""What the public modules are made of. Nothing here is public: names and places may change."""
